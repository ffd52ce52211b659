#include "training/program/model_source.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/base/text.h"

namespace gpipe::train_program {

// ---- --model

namespace {

using models::DataKind;

constexpr char kForms[] =
    "one of these forms is needed:\n"
    "  text: an input Long [rows, tokens], an output [rows, tokens, "
    "vocabulary]\n"
    "  labelled images: an input Float [rows, 3, height, width], an output "
    "[rows, classes]\n"
    "  images with masks: an input Float [rows, 3, height, width], an output "
    "[rows, 1, height, width]\n"
    "  anything else: one output, and --data_dir=FILE with a tensor for each "
    "input and a target\n"
    "Export a module with one input and one output, such as one that calls the "
    "model and returns its logits";

bool is_exported(const std::string& model) {
  return std::filesystem::path(model).extension() == ".pt2";
}

// Returns nullopt if no kind of data fits.
std::optional<DataKind> kind_of(const ExportedSignature& signature) {
  if (signature.inputs.size() != 1 || signature.outputs.size() != 1) {
    return std::nullopt;
  }
  const ExportedTensor& input = signature.inputs[0];
  const std::size_t before = input.sizes.size();
  const std::size_t after = signature.outputs[0].sizes.size();
  if (input.dtype == at::kLong && before == 2 && after == 3) {
    return DataKind::kText;
  }
  if (input.dtype != at::kFloat || before != 4) return std::nullopt;
  if (after == 2) return DataKind::kImages;
  if (after == 4) return DataKind::kMasks;
  return std::nullopt;
}

// Returns a line per tensor, as //tools:exported prints them.
std::string lines_of(const std::vector<ExportedTensor>& tensors) {
  std::string text;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    text += "\n  " + std::to_string(k) + "  " + tensors[k].name + "  " +
            tensors[k].shape;
  }
  return text;
}

DataKind kind_of_file(const std::string& path,
                      const ExportedSignature& signature, FileUse use) {
  const auto kind = use != FileUse::kAnyData && signature.outputs.size() == 1
                        ? std::optional(DataKind::kTensors)
                        : kind_of(signature);
  TORCH_CHECK_VALUE(kind, "--model=", path, " has the inputs",
                    lines_of(signature.inputs), "\nand the outputs",
                    lines_of(signature.outputs),
                    "\nwhich fit no kind of data; ", kForms,
                    signature.outputs.size() > 1
                        ? "; --output=N chooses one of several outputs"
                        : "");
  if (use == FileUse::kGeneration) return *kind;
  for (const ExportedTensor& each : signature.inputs) {
    TORCH_CHECK_VALUE(!each.sizes.empty(), "--model=", path, " has the input ",
                      each.name, " without rows; export it with dimension 0");
    const auto& rows = each.sizes[0];
    TORCH_CHECK_VALUE(
        !rows, "--model=", path, " was exported for exactly ", rows.value_or(0),
        " rows, but rows are split into micro-batches; export with "
        "dynamic_shapes={0: torch.export.Dim(\"batch\")} for the input ",
        each.name);
  }
  return *kind;
}

}  // namespace

std::string python_name(const std::string& name) {
  return name.substr(name.find('.') + 1);
}

std::string shape_text(const at::Tensor& tensor) {
  return c10::str(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
}

ExportedOptions exported_options(const Options& options) {
  check_at_least("max_crossing", options.max_crossing, 0);
  TORCH_CHECK_VALUE(options.output >= -1, "--output=", options.output,
                    ": must be the number of an output, counted from 0, or -1");
  ExportedOptions result;
  result.max_crossing(options.max_crossing);
  if (options.output >= 0) result.outputs({options.output});
  return result;
}

ModelSource::ModelSource(std::string model, ExportedOptions options,
                         FileUse use)
    : model_(std::move(model)), options_(std::move(options)) {
  if (is_exported(model_)) {
    file_.emplace(model_, options_);
    kind_ = kind_of_file(model_, file_->signature(), use);
  } else {
    kind_ = models::data_kind_of(model_);
  }
}

std::string ModelSource::description() const {
  if (!file_) return model_;
  return std::filesystem::path(model_).filename().string() + ", checksum " +
         std::to_string(file_->signature().checksum);
}

Options ModelSource::fitted(Options options) const {
  if (!file_) return options;
  TORCH_CHECK_VALUE(
      options.precision != "bfloat16",
      "--precision=bfloat16 converts the "
      "weights, but the operators of --model=",
      model_,
      " have the dtypes of "
      "the export; use --precision=amp-bfloat16, or export the model in "
      "bfloat16 and use --precision=float32");
  if (kind_ == DataKind::kTensors) return options;
  if (kind_ == DataKind::kText) {
    check_text(options);
    return options;
  }
  const auto& sizes = file_->signature().inputs[0].sizes;
  const auto& fixed = sizes[2] ? sizes[2] : sizes[3];
  if (options.size == 0 && fixed) options.size = *fixed;
  check_images(options.size);
  return options;
}

// `size`: of the images, 0 if the data decides and the file allows any.
void ModelSource::check_images(int64_t size) const {
  const auto& input = file_->signature().inputs[0].sizes;
  TORCH_CHECK_VALUE(!input[1] || *input[1] == 3, "--model=", model_,
                    " was exported for images of ", input[1].value_or(0),
                    " channels, but this program reads 3 (red, green, blue); "
                    "export the model with 3");
  for (const auto& each : {input[2], input[3]}) {
    TORCH_CHECK_VALUE(
        !each || *each == size, "--size=", size, ", but --model=", model_,
        " has the input ", file_->signature().inputs[0].shape,
        ", and images are square; use the --size of the file, or export with "
        "dynamic_shapes={2: torch.export.Dim(\"height\"), 3: "
        "torch.export.Dim(\"width\")} for the input");
  }
  if (kind_ != DataKind::kMasks) return;
  const auto& output = file_->signature().outputs[0].sizes;
  TORCH_CHECK_VALUE(!output[1] || *output[1] == 1, "--model=", model_, " has ",
                    output[1].value_or(0),
                    " outputs per pixel, but masks have 1; export a model with "
                    "1");
  for (const auto& each : {output[2], output[3]}) {
    TORCH_CHECK_VALUE(!each || size == 0 || *each == size, "--model=", model_,
                      " has the output ", file_->signature().outputs[0].shape,
                      " for images of ", size, " x ", size,
                      ", but masks have the size of the images; export a model "
                      "that scales its output up");
  }
}

void ModelSource::check_text(const Options& options) const {
  const auto& tokens = file_->signature().inputs[0].sizes[1];
  if (!tokens) return;
  TORCH_CHECK_VALUE(
      options.length == *tokens, "--length=", options.length,
      ", but --model=", model_, " was exported for ", *tokens,
      " tokens; use --length=", *tokens,
      ", or export with dynamic_shapes={1: torch.export.Dim(\"tokens\")} for "
      "the input");
  TORCH_CHECK_VALUE(
      options.bucket == 0 || options.bucket == *tokens,
      "--bucket=", options.bucket,
      " makes micro-batches of several lengths, "
      "but --model=",
      model_, " was exported for ", *tokens,
      " tokens; use --bucket=0, or export with dynamic_shapes={1: "
      "torch.export.Dim(\"tokens\")} for the input");
}

void ModelSource::check_outputs(int64_t needed,
                                const std::string& items) const {
  if (!file_) return;
  const auto& outputs = file_->signature().outputs[0].sizes.back();
  TORCH_CHECK_VALUE(!outputs || *outputs >= needed, "--model=", model_, " has ",
                    outputs.value_or(0), " outputs, but the data has ", needed,
                    " ", items, "; export a model with at least ", needed);
}

torch::nn::Sequential ModelSource::make(const models::ModelOptions& options) {
  if (!file_) return models::named_model(model_, options);
  exported_ = file_->read(0, file_->size());
  return exported_->layers;
}

NameTable ModelSource::torchvision_names() const {
  return file_ ? NameTable() : models::torchvision_names(model_);
}

// ---- --eval_model

namespace {

// The nodes that an error lists.
constexpr std::size_t kListed = 5;

// Calls `use(name, tensor, is_parameter)` for each tensor of `module`.
template <typename Use>
void for_each_tensor(const torch::nn::Module& module, const Use& use) {
  for (const auto& item : module.named_parameters()) {
    use(item.key(), item.value(), true);
  }
  for (const auto& item : module.named_buffers()) {
    use(item.key(), item.value(), false);
  }
}

// A tensor of the trained model.
struct Trained {
  at::Tensor tensor;
  // nullopt for a constant buffer of several layers.
  std::optional<int64_t> stage;
};

std::map<std::string, Trained> tensors_of(const torch::nn::Sequential& model,
                                          const std::vector<int64_t>& balance) {
  std::map<std::string, Trained> found;
  int64_t stage = 0, left = balance[0];
  for (const auto& layer : model->children()) {
    if (left == 0) left = balance[++stage];
    --left;
    for_each_tensor(*layer, [&](const std::string& name, const at::Tensor& each,
                                bool /*is_parameter*/) {
      const auto [known, is_new] =
          found.try_emplace(name, Trained{each, stage});
      if (!is_new) known->second.stage.reset();
    });
  }
  return found;
}

// The stage that a layer must be in, and the tensor that says so.
struct Wanted {
  std::optional<int64_t> stage;
  std::string tensor;
};

// `layer`: its name, for errors.
Wanted wanted_stage(const std::map<std::string, Trained>& trained,
                    const torch::nn::Module& module, const std::string& layer) {
  Wanted wanted;
  for_each_tensor(module, [&](const std::string& name, const at::Tensor& own,
                              bool is_parameter) {
    const auto found = trained.find(name);
    if (found == trained.end()) {
      TORCH_CHECK_VALUE(!is_parameter, "--eval_model has the parameter '", name,
                        "', which --model does not train; export both from the "
                        "same model");
      return;
    }
    const auto& [tensor, stage] = found->second;
    TORCH_CHECK_VALUE(own.sizes() == tensor.sizes() &&
                          own.scalar_type() == tensor.scalar_type(),
                      "'", name, "' is ", shape_text(own),
                      " in --eval_model and ", shape_text(tensor),
                      " in --model; export both from the same model");
    if (!stage) return;
    TORCH_CHECK_VALUE(!wanted.stage || wanted.stage == stage, "the layer '",
                      layer, "' of --eval_model needs '", wanted.tensor,
                      "' of stage ", wanted.stage.value_or(0), " and '", name,
                      "' of stage ", *stage,
                      " of --model; choose another --balance");
    wanted = {stage, name};
  });
  return wanted;
}

// Returns "\n  Long [*, 128]" for each tensor. "*" is a size that varies: files
// may name it differently.
std::string shapes_of(const std::vector<ExportedTensor>& tensors) {
  std::string text;
  for (const ExportedTensor& each : tensors) {
    absl::StrAppend(
        &text, "\n  ",
        each.dtype ? std::string(c10::toString(*each.dtype)) + " " : "", "[",
        absl::StrJoin(each.sizes, ", ",
                      [](std::string* out, const auto& size) {
                        absl::StrAppend(out,
                                        size ? std::to_string(*size) : "*");
                      }),
        "]");
  }
  return text;
}

}  // namespace

void check_evaluation(const Options& options, const ModelSource& source) {
  if (options.eval_every < 0 || !options.eval_model.empty()) return;
  if (!source.file()) return;
  const auto& problems = source.file()->signature().eval_problems;
  TORCH_CHECK_VALUE(
      problems.empty(), "--model=", options.model,
      " cannot be evaluated, because the export has lost what eval() changes:",
      first_lines(problems, kListed),
      "\nUse --eval_model=SECOND.pt2 with a second export of the same model, "
      "after model.eval(), or --eval_every=-1");
}

ExportedFile eval_file(const Options& options, const ModelSource& source) {
  const std::string flag = "--eval_model=" + options.eval_model;
  TORCH_CHECK_VALUE(source.file(), flag,
                    " is for a --model that is a .pt2 file"
                    ", but --model=",
                    options.model);
  ExportedFile file(options.eval_model,
                    exported_options(options).max_crossing(
                        std::numeric_limits<int64_t>::max()));
  const ExportedSignature& own = file.signature();
  const ExportedSignature& trained = source.file()->signature();
  TORCH_CHECK_VALUE(
      own.eval_problems.empty(), flag,
      " cannot be evaluated either:", first_lines(own.eval_problems, kListed),
      "\nExport it after model.eval()");
  for (const auto& [what, found, expected] :
       {std::tuple("inputs", &own.inputs, &trained.inputs),
        std::tuple("outputs", &own.outputs, &trained.outputs)}) {
    const std::string a = shapes_of(*found), b = shapes_of(*expected);
    TORCH_CHECK_VALUE(a == b, flag, " has the ", what, a,
                      "\nbut --model=", options.model, " has", b,
                      "\nExport both from the same model, with the same "
                      "dynamic_shapes");
  }
  return file;
}

std::vector<int64_t> eval_balance(const torch::nn::Sequential& trained,
                                  const std::vector<int64_t>& balance,
                                  const torch::nn::Sequential& evaluated) {
  const auto tensors = tensors_of(trained, balance);
  const auto layers = evaluated->named_children();
  std::vector<Wanted> wanted;
  for (const auto& item : layers) {
    wanted.push_back(wanted_stage(tensors, *item.value(), item.key()));
  }
  // The stage of the next layer that wants one. The last layer is in the last
  // stage.
  const auto last = static_cast<int64_t>(balance.size()) - 1;
  std::vector<int64_t> next(wanted.size() + 1, last);
  for (std::size_t k = wanted.size(); k-- > 0;) {
    next[k] = wanted[k].stage.value_or(next[k + 1]);
  }
  std::vector<int64_t> result(balance.size());
  std::size_t at = 0;
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const auto stage = static_cast<std::size_t>(next[k]);
    // A layer without tensors fills a stage that would be empty, else it stays
    // with the layer before it.
    const bool moves =
        result[at] > 0 && stage > at &&
        (wanted[k].stage || stage > at + 1 || k + 1 == wanted.size());
    if (moves) ++at;
    TORCH_CHECK_VALUE(!wanted[k].stage || stage == at, "the layer '",
                      layers[k].key(), "' of --eval_model needs '",
                      wanted[k].tensor, "' of stage ", stage,
                      " of --model, but it follows layers of stage ", at,
                      "; choose another --balance");
    ++result[at];
  }
  TORCH_CHECK_VALUE(result.back() > 0, "--eval_model has ", wanted.size(),
                    " layers, which are too few for the ", balance.size(),
                    " stages of --model; choose another --balance");
  return result;
}

void share_tensors(const torch::nn::Module& trained,
                   torch::nn::Module& evaluated) {
  std::map<std::string, at::Tensor> tensors;
  for_each_tensor(trained, [&](const std::string& name, const at::Tensor& each,
                               bool /*is_parameter*/) {
    tensors.emplace(python_name(name), each);
  });
  const c10::NoGradGuard no_grad;
  for_each_tensor(evaluated, [&](const std::string& name, at::Tensor own,
                                 bool /*is_parameter*/) {
    const auto found = tensors.find(python_name(name));
    if (found == tensors.end()) return;
    own.set_data(found->second.detach());
    // Constants that are computed from a buffer are kept as long as its version
    // stays.
    own.unsafeGetTensorImpl()->set_version_counter(
        found->second.unsafeGetTensorImpl()->version_counter());
  });
}

}  // namespace gpipe::train_program
