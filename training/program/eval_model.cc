#include "training/program/eval_model.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "gpipe/base/text.h"

namespace gpipe::train_program {
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

// Returns Python's name of a tensor of a whole model: "fc.weight" for
// "fc_2.fc.weight".
std::string python_name(const std::string& name) {
  return name.substr(name.find('.') + 1);
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

std::string text_of(const at::Tensor& tensor) {
  return c10::str(c10::toString(tensor.scalar_type()), " ", tensor.sizes());
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
                      "'", name, "' is ", text_of(own), " in --eval_model and ",
                      text_of(tensor),
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
std::string lines_of(const std::vector<ExportedTensor>& tensors) {
  std::string text;
  for (const ExportedTensor& each : tensors) {
    text += "\n  ";
    if (each.dtype) text += std::string(c10::toString(*each.dtype)) + " ";
    text += "[";
    for (std::size_t k = 0; k < each.sizes.size(); ++k) {
      text += (k > 0 ? ", " : "") +
              (each.sizes[k] ? std::to_string(*each.sizes[k]) : "*");
    }
    text += "]";
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
    const std::string a = lines_of(*found), b = lines_of(*expected);
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
