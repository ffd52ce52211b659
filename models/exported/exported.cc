#include "models/exported/exported.h"

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/any.h>

#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "gpipe/base/crc32c.h"
#include "gpipe/base/text.h"
#include "models/exported/analysis.h"
#include "models/exported/archive.h"
#include "models/exported/cuts.h"
#include "models/exported/layer.h"
#include "models/exported/plan.h"
#include "models/exported/program.h"
#include "models/exported/program_reader.h"
#include "models/weights/formats.h"
#include "models/weights/hugging_face.h"
#include "models/weights/weight_slots.h"

namespace gpipe {

namespace internal {

// The tensors of each weight of a model. A constant buffer that several layers
// read has one in each.
class ExportedWeights {
 public:
  struct Entry {
    std::string name;
    std::vector<at::Tensor> tensors;
  };

  std::vector<Entry> entries;  // persistent ones, in Python's order
  std::shared_ptr<exported::Model> model;
};

}  // namespace internal

namespace exported {
namespace {

// A layer whose input and output are a tensor or a vector of tensors.
template <typename Out, typename In>
class TypedLayer : public ProgramLayer {
 public:
  using ProgramLayer::ProgramLayer;

  Out forward(In input) {
    std::vector<at::Tensor> outputs;
    if constexpr (std::is_same_v<In, at::Tensor>) {
      std::vector<at::Tensor> inputs;
      inputs.push_back(std::move(input));
      outputs = run(std::move(inputs));
    } else {
      outputs = run(std::move(input));
    }
    if constexpr (std::is_same_v<Out, at::Tensor>) {
      return std::move(outputs[0]);
    } else {
      return outputs;
    }
  }
};

ExportedTensor exported_tensor(const Program& program, ValueId id) {
  const Value& value = program.values[id];
  ExportedTensor tensor{value.name, value.dtype, {}, shape_text(program, id)};
  for (const Extent& size : value.sizes) {
    const bool is_fixed = size.symbol == Extent::kNone;
    tensor.sizes.push_back(is_fixed ? std::optional(size.factor)
                                    : std::nullopt);
    tensor.largest.push_back(program.symbols.largest(size));
  }
  return tensor;
}

// Returns whether the node changes only some elements of the buffer, through a
// view or by indices.
bool changes_part(const Program& program, const Node& node, ValueId written,
                  ValueId buffer) {
  return program.values[written].sizes != program.values[buffer].sizes ||
         node.target.find(".index_") != std::string::npos ||
         node.target.find(".scatter_") != std::string::npos ||
         node.target.find(".masked_") != std::string::npos;
}

// Returns the buffers that a call reads and changes.
std::vector<ExportedTensor> state_of(const Program& program) {
  std::set<ValueId> read, changed, in_part;  // memories
  for (const Node& node : program.nodes) {
    const auto note = [&](std::set<ValueId>& memories, ValueId each) {
      if (each == node.running_mean || each == node.running_var) return;
      memories.insert(program.values[each].memory);
    };
    for (const ValueId each : node.writes) {
      note(changed, each);
      const ValueId memory = program.values[each].memory;
      if (changes_part(program, node, each, memory)) in_part.insert(memory);
    }
    if (!node.needed) continue;
    for (const ValueId each : node.reads) note(read, each);
  }
  std::vector<ExportedTensor> state;
  for (const ValueId each : changed) {
    const Value& value = program.values[each];
    if (value.origin != Origin::kBuffer || !read.contains(each)) continue;
    state.push_back(exported_tensor(program, each));
    const Weight& weight = program.weights[value.weight];
    state.back().name = program.weights[weight.tied_to].name;
    state.back().changed_in_part = in_part.contains(each);
  }
  return state;
}

// The layers of a model, and what each of them registered.
class Part {
 public:
  // `weights`: see ExportedOptions.
  Part(Archive& archive, std::shared_ptr<Model> model, bool weights)
      : archive_(archive),
        model_(std::move(model)),
        number_(model_->reads++),
        weights_(weights) {}

  // Adds the layer of a plan, by its place in Model::plans.
  void add(int place, const std::string& path, const std::string& name) {
    using Tensors = std::vector<at::Tensor>;
    const LayerPlan& plan = model_->plans[place];
    const bool takes_one = plan.inputs.size() == 1;
    const bool gives_one = plan.outputs.size() == 1;
    if (takes_one && gives_one) {
      add<TypedLayer<at::Tensor, at::Tensor>>(place, path, name);
    } else if (takes_one) {
      add<TypedLayer<Tensors, at::Tensor>>(place, path, name);
    } else if (gives_one) {
      add<TypedLayer<at::Tensor, Tensors>>(place, path, name);
    } else {
      add<TypedLayer<Tensors, Tensors>>(place, path, name);
    }
  }

  // `whole`: all layers are there, so that a weight without a layer belongs to
  // none.
  std::shared_ptr<internal::ExportedWeights> collect(bool whole) {
    auto weights = std::make_shared<internal::ExportedWeights>();
    weights->model = model_;
    const auto& all = model_->program.weights;
    for (const int number : model_->program.weight_order) {
      const Weight& weight = all[number];
      if (!weight.persistent) continue;
      auto& tensors = tensors_[weight.tied_to];
      if (tensors.empty()) {
        if (!whole) continue;
        tensors.push_back(read(weight));
      }
      weights->entries.push_back({weight.name, tensors});
    }
    return weights;
  }

  torch::nn::Sequential layers;

 private:
  template <typename Layer>
  void add(int place, const std::string& path, const std::string& name) {
    auto layer = std::make_shared<Layer>(
        model_, place, path,
        [this](int weight) { return read(model_->program.weights[weight]); },
        number_);
    for (const auto& [weight, tensor] : layer->weights()) {
      tensors_[model_->program.weights[weight].tied_to].push_back(tensor);
    }
    layers->push_back(name, torch::nn::AnyModule(std::move(layer)));
  }

  at::Tensor read(const Weight& weight) {
    return weights_ || !weight.persistent ? read_weight(archive_, weight)
                                          : weight_without_values(weight);
  }

  Archive& archive_;
  const std::shared_ptr<Model> model_;
  const int64_t number_;  // of this read
  const bool weights_;
  // By the first one of tied weights.
  std::map<int, std::vector<at::Tensor>> tensors_;
};

void check_problems(const Program& program) {
  constexpr std::size_t kListed = 20;
  const auto& problems = program.problems;
  TORCH_CHECK_VALUE(problems.empty(), "cannot run as a pipeline:",
                    first_lines(problems, kListed));
}

ExportedSignature signature_of(const Program& program, Archive& archive) {
  ExportedSignature result;
  for (const ValueId each : program.inputs) {
    result.inputs.push_back(exported_tensor(program, each));
  }
  for (const ValueId each : program.outputs) {
    result.outputs.push_back(exported_tensor(program, each));
  }
  result.state = state_of(program);
  const std::string text = archive.text("models/" + archive.model() + ".json");
  result.checksum = internal::crc32c(text.data(), text.size());
  return result;
}

}  // namespace
}  // namespace exported

namespace {

internal::WeightSlots weight_slots(const ExportedModel& model) {
  std::map<std::string, const std::vector<at::Tensor>*> tensors;
  for (const auto& each : model.weights->entries) {
    tensors.emplace(each.name, &each.tensors);
  }
  const exported::Program& program = model.weights->model->program;
  internal::WeightSlots result;
  for (const int number : program.weight_order) {
    const exported::Weight& weight = program.weights[number];
    result.slots.push_back({weight.name,
                            weight.dtype,
                            weight.sizes,
                            weight.persistent,
                            weight.tied_to,
                            {}});
    const auto found = tensors.find(weight.name);
    if (found != tensors.end()) result.slots.back().tensors = *found->second;
  }
  result.dtype_constants = exported::dtype_constants(program);
  return result;
}

}  // namespace

void load_hugging_face(const std::string& folder, ExportedModel& model,
                       const HuggingFaceOptions& options) {
  internal::load_hugging_face(folder, weight_slots(model), options);
}

NameTable hugging_face_names(const std::string& folder,
                             const ExportedModel& model) {
  return internal::hugging_face_names(folder, weight_slots(model));
}

StateDict ExportedModel::state_dict() const {
  StateDict dict;
  for (const auto& each : weights->entries) {
    dict.insert(each.name, each.tensors[0].detach());
  }
  return dict;
}

void ExportedModel::load_state_dict(const StateDict& dict) {
  gpipe::load_state_dict(state_dict(), dict);
  const c10::NoGradGuard no_grad;
  for (const auto& each : weights->entries) {
    for (std::size_t k = 1; k < each.tensors.size(); ++k) {
      at::Tensor copy = each.tensors[k];
      copy.copy_(each.tensors[0]);
    }
  }
}

void ExportedModel::use_buffer_sets(std::vector<int64_t> sets) {
  exported::Model& model = *weights->model;
  std::map<int64_t, int64_t> serials;
  for (int64_t& each : sets) {
    const auto known = model.set_serials.find(each);
    const int64_t serial =
        known == model.set_serials.end() ? model.sets_made++ : known->second;
    each = serials.try_emplace(each, serial).first->second;
  }
  model.set_serials = std::move(serials);
  model.buffer_sets = std::move(sets);
}

class ExportedFile::State {
 public:
  State(const std::string& path, const ExportedOptions& options)
      : path(path), archive(path), model(std::make_shared<exported::Model>()) {
    model->program = exported::read_program(archive, options.outputs());
    exported::analyze(model->program,
                      /*keep_random=*/options.outputs().empty(),
                      options.concatenates());
    model->name = options.name().empty() ? path.substr(path.rfind('/') + 1)
                                         : options.name();
    exported::check_problems(model->program);
    model->plans =
        exported::plan_layers(model->program, options.max_crossing());
    for (const exported::LayerPlan& each : model->plans) {
      paths.push_back(exported::layer_path(model->program, each));
    }
    names = exported::layer_names(paths);
    signature = exported::signature_of(model->program, archive);
    signature.eval_problems = exported::eval_problems(model->program);
    if (model->plans.size() == 1) {
      signature.uncut_reason =
          exported::uncut_reason(model->program, options.max_crossing());
    }
  }

  const std::string path;
  exported::Archive archive;
  const std::shared_ptr<exported::Model> model;
  std::vector<std::string> paths, names;  // of the layers
  ExportedSignature signature;
};

ExportedFile::ExportedFile(const std::string& path,
                           const ExportedOptions& options)
    : state_(internal::with_prefix<c10::Error>("'" + path + "' ", [&] {
        return std::make_shared<State>(path, options);
      })) {}

const ExportedSignature& ExportedFile::signature() const {
  return state_->signature;
}

int64_t ExportedFile::size() const {
  return static_cast<int64_t>(state_->model->plans.size());
}

ExportedModel ExportedFile::read(int64_t first, int64_t count,
                                 bool weights) const {
  State& state = *state_;
  TORCH_CHECK_INDEX(first >= 0 && count > 0 && first <= size() - count,
                    "layers ", first, " to ", first + count - 1, " of ",
                    internal::in_quotes(state.path),
                    " were asked for, but there are ", size());
  return internal::with_prefix<c10::Error>("'" + state.path + "' ", [&] {
    exported::Part part(state.archive, state.model, weights);
    for (int64_t k = first; k < first + count; ++k) {
      part.add(static_cast<int>(k), state.paths[k], state.names[k]);
    }
    return ExportedModel{state.signature, part.layers,
                         part.collect(/*whole=*/count == size())};
  });
}

uint32_t ExportedFile::weights_checksum() const {
  return state_->archive.weights_checksum();
}

ExportedModel load_exported(const std::string& path,
                            const ExportedOptions& options) {
  const ExportedFile file(path, options);
  return file.read(0, file.size(), options.weights());
}

ExportedModel load_exported(const std::string& path, int64_t first,
                            int64_t count, const ExportedOptions& options) {
  return ExportedFile(path, options).read(first, count, options.weights());
}

ExportedSignature exported_signature(const std::string& path,
                                     const ExportedOptions& options) {
  return ExportedFile(path, options).signature();
}

}  // namespace gpipe
