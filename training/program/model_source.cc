#include "training/program/model_source.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <filesystem>
#include <utility>
#include <vector>

namespace gpipe::train_program {
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

ExportedOptions exported_options(const Options& options) {
  TORCH_CHECK_VALUE(options.max_crossing >= 0,
                    "--max_crossing=", options.max_crossing,
                    ": must be at least 0");
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

}  // namespace gpipe::train_program
