#include "models/exported/layer.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <ostream>
#include <string>

#include "gpipe/gpipe.h"
#include "models/exported/control_flow.h"
#include "models/exported/operators.h"
#include "models/exported/schema.h"

namespace gpipe::exported {

c10::IValue ConstantCache::find(Id id, const ConstantKey& key) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [known, value] : values_[id]) {
    if (known == key) return value;
  }
  return {};
}

void ConstantCache::insert(Id id, ConstantKey key, c10::IValue value) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& list = values_[id];
  const auto is_there = [&](const auto& each) {
    return std::equal(key.begin(), key.begin() + kPlace, each.first.begin());
  };
  if (std::ranges::count_if(list, is_there) >= kMostSizes) {
    list.erase(std::ranges::find_if(list, is_there));
  } else if (list.size() >= kMost) {
    list.erase(list.begin());
  }
  list.emplace_back(std::move(key), std::move(value));
}

// ---- Modules that hold the weights

namespace {

// Returns the module that holds the parameter, buffer or module `name`, such as
// "layers.3.mlp.weight", and the last part of the name. Makes a module for each
// name before a dot. Throws c10::Error if one of these is empty.
std::pair<torch::nn::Module*, std::string> holder_of(torch::nn::Module& root,
                                                     const std::string& name) {
  torch::nn::Module* module = &root;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t dot = name.find('.', begin);
    if (dot == std::string::npos) return {module, name.substr(begin)};
    const std::string part = name.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* child = children.find(part);
    module = child ? child->get()
                   : module
                         ->register_module(
                             part, std::make_shared<torch::nn::Module>(part))
                         .get();
    begin = dot + 1;
  }
}

// Registers a BatchNorm with running statistics as the module `name` in `root`.
// So a pipeline knows its buffers: it restores them after a recompute, and
// defers their updates if GPipeOptions::deferred_batch_norm is set. `channels`:
// of the running statistics.
std::shared_ptr<torch::nn::Module> register_norm(torch::nn::Module& root,
                                                 const std::string& name,
                                                 int64_t channels, bool affine,
                                                 double momentum,
                                                 double epsilon) {
  // The number of dimensions only matters to its own forward().
  auto norm = std::make_shared<torch::nn::BatchNorm2dImpl>(
      torch::nn::BatchNorm2dOptions(channels)
          .affine(affine)
          .momentum(momentum)
          .eps(epsilon));
  const auto [module, last] = holder_of(root, name);
  return module->register_module(last, std::move(norm));
}

// Gives the parameter or buffer `name` ("running_mean") of a norm the values of
// `tensor`. Returns the norm's tensor, which shares their memory.
at::Tensor set_tensor(const torch::nn::Module& norm, const std::string& name,
                      const at::Tensor& tensor, bool requires_grad) {
  const auto parameters = norm.named_parameters(/*recurse=*/false);
  const auto buffers = norm.named_buffers(/*recurse=*/false);
  const at::Tensor* found = parameters.find(name);
  if (!found) found = buffers.find(name);
  TORCH_INTERNAL_ASSERT(found, "a BatchNorm has no '", name, "'");
  const c10::NoGradGuard no_grad;
  at::Tensor own = *found;
  own.set_data(tensor);
  own.set_requires_grad(requires_grad);
  return own;
}

// ---- The constructor: weights, and nodes as steps with slots

// Inference tensors have no version.
int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

std::string skip_name(const Model& model, const Hop& hop) {
  return model.name + "/" + model.program.values[hop.value].name + "." +
         std::to_string(hop.value) + "." + std::to_string(hop.hop);
}

// Returns "layers.3.norm" for the weight "layers.3.norm.running_mean", if its
// last name is `last`; else "".
std::string module_of(const std::string& weight, const std::string& last) {
  if (!weight.ends_with("." + last)) return "";
  return weight.substr(0, weight.size() - last.size() - 1);
}

double real_argument(const Node& node, const char* name) {
  const auto place = node.op->schema().argumentIndexWithName(name);
  if (!place) return 0;
  const c10::IValue& value = node.arguments[*place].constant;
  return value.isDouble() ? value.toDouble() : 0;
}

}  // namespace

ProgramLayer::Names ProgramLayer::skip_names(const Model& model,
                                             const LayerPlan& plan) {
  Names names;
  for (const Hop& each : plan.stashes) {
    names.stash.push_back(skip_name(model, each));
  }
  for (const Hop& each : plan.pops) names.pop.push_back(skip_name(model, each));
  return names;
}

ProgramLayer::ProgramLayer(std::shared_ptr<Model> model, int place,
                           const std::string& name, const ReadWeight& read,
                           int64_t number)
    : Module(name),
      Skippable(skip_names(*model, model->plans[place])),
      model_(std::move(model)),
      place_(place),
      number_(number) {
  const LayerPlan& plan = model_->plans[place];
  register_norms(plan, read);
  register_weights(plan, read);
  compile(plan);
}

int ProgramLayer::slot_of(ValueId value) {
  return slots_.try_emplace(value, static_cast<int>(slots_.size()))
      .first->second;
}

// Returns a slot of a value that the program does not have.
int ProgramLayer::new_slot() {
  return slot_of(
      static_cast<ValueId>(model_->program.values.size() + slots_.size()));
}

ProgramLayer::Skip ProgramLayer::skip_of(const Hop& hop) {
  return {slot_of(hop.value), skip_name(*model_, hop),
          !model_->program.values[hop.value].is_tensor};
}

void ProgramLayer::add_weight(ValueId value, at::Tensor tensor) {
  const Value& weight = model_->program.values[value];
  if (weight.origin == Origin::kBuffer && weight.written) {
    state_.push_back(own_.size());
  }
  weights_.emplace_back(weight.weight, tensor);
  versions_[slot_of(value)] = version_of(tensor);
  own_.emplace_back(slot_of(value), std::move(tensor));
}

// Registers the modules of all norms whose values belong to this layer under
// the names of a BatchNorm.
void ProgramLayer::register_norms(const LayerPlan& plan,
                                  const ReadWeight& read) {
  const Program& program = model_->program;
  std::map<std::string, ValueId> own;  // by the weight's name
  for (const ValueId each : plan.weights) {
    own.emplace(program.weights[program.values[each].weight].name, each);
  }
  std::map<std::string, int> norms;  // by the module's name
  for (const int k : plan.nodes) {
    const Node& node = program.nodes[k];
    if (node.running_mean == kNoValue ||
        node.op->operator_name().name != "aten::batch_norm") {
      continue;
    }
    const Value& mean = program.values[node.running_mean];
    if (mean.weight < 0 || program.weights[mean.weight].sizes.size() != 1) {
      continue;
    }
    const std::string name =
        module_of(program.weights[mean.weight].name, "running_mean");
    if (name.empty()) continue;
    if (const auto known = norms.find(name); known != norms.end()) {
      norm_of_node_[k] = known->second;
      continue;
    }
    // The values that the node reads must be those of one module.
    std::map<std::string, ValueId> values;
    for (const char* each : {"weight", "bias", "running_mean", "running_var",
                             "num_batches_tracked"}) {
      if (const auto found = own.find(name + "." + each); found != own.end()) {
        values.emplace(each, found->second);
      }
    }
    const auto is_own = [&](const char* argument, const char* last) {
      const auto place = node.op->schema().argumentIndexWithName(argument);
      const auto& elements = node.arguments[*place].elements;
      const auto found = values.find(last);
      if (elements.empty()) return found == values.end();
      return found != values.end() && found->second == elements[0].value;
    };
    if (!is_own("running_mean", "running_mean") ||
        !is_own("running_var", "running_var") || !is_own("weight", "weight") ||
        !is_own("bias", "bias") ||
        values.count("weight") != values.count("bias")) {
      continue;
    }
    norms_.push_back(register_norm(
        *this, name, program.weights[mean.weight].sizes.at(0),
        values.count("weight") > 0, real_argument(node, "momentum"),
        real_argument(node, "eps")));
    for (const auto& [last, value] : values) {
      const int weight = program.values[value].weight;
      add_weight(value, set_tensor(*norms_.back(), last, read(weight),
                                   program.weights[weight].requires_grad));
    }
    norms.emplace(name, static_cast<int>(norms_.size()) - 1);
    norm_of_node_[k] = static_cast<int>(norms_.size()) - 1;
  }
}

void ProgramLayer::register_weights(const LayerPlan& plan,
                                    const ReadWeight& read) {
  const Program& program = model_->program;
  for (const ValueId each : plan.weights) {
    if (slots_.count(each)) continue;  // of a norm
    const int number = program.values[each].weight;
    const Weight& weight = program.weights[number];
    at::Tensor tensor = read(number);
    const auto [module, last] = holder_of(*this, weight.name);
    if (weight.is_parameter) {
      module->register_parameter(last, tensor, weight.requires_grad);
    } else {
      module->register_buffer(last, tensor);
    }
    add_weight(each, std::move(tensor));
  }
}

void ProgramLayer::compile(const LayerPlan& plan) {
  for (const ValueId each : plan.inputs) inputs_.push_back(slot_of(each));
  for (const Hop& each : plan.pops) pops_.push_back(skip_of(each));
  for (const SizeSource& each : plan.sizes) {
    sizes_.push_back({slot_of(each.value),
                      each.from == kNoValue ? -1 : slot_of(each.from),
                      each.dimension, each.divisor, each.factor});
  }
  find_constants(plan);
  for (const int k : plan.nodes) {
    const auto norm = norm_of_node_.find(k);
    steps_.push_back(step_of(model_->program.nodes[k],
                             norm == norm_of_node_.end() ? -1 : norm->second));
  }
  for (const Hop& each : plan.stashes) stashes_.push_back(skip_of(each));
  const std::vector<Value>& values = model_->program.values;
  for (const ValueId each : plan.outputs) {
    const bool is_constant =
        std::ranges::any_of(constants_, [&](const auto& c) {
          return values[c.value].memory == values[each].memory;
        });
    if (is_constant) {
      cloned_outputs_.push_back(static_cast<int>(outputs_.size()));
    }
    outputs_.push_back(slot_of(each));
  }
  std::set<int> live(outputs_.begin(), outputs_.end());
  for (const Skip& each : stashes_) live.insert(each.slot);
  find_releases(steps_, std::move(live));
}

ProgramLayer::Input ProgramLayer::input_of(const Argument& argument) {
  Input input{&argument, {}};
  for (const Element& each : argument.elements) {
    input.slots.push_back(each.value == kNoValue ? -1 : slot_of(each.value));
  }
  return input;
}

ProgramLayer::Step ProgramLayer::step_of(const Node& node, int norm) {
  const Program& program = model_->program;
  Step step;
  step.node = &node;
  step.norm = norm;
  for (const Argument& each : node.arguments) {
    step.inputs.push_back(input_of(each));
  }
  for (const Result& result : node.results) {
    Output output{result.is_list, {}};
    for (const ValueId each : result.values) {
      output.slots.push_back(each == kNoValue ? -1 : slot_of(each));
    }
    step.outputs.push_back(std::move(output));
  }
  for (const Body& body : node.bodies) {
    Graph& graph = step.graphs.emplace_back();
    for (const ValueId each : body.inputs) {
      graph.inputs.push_back(slot_of(each));
    }
    for (const Node& each : body.nodes) graph.steps.push_back(step_of(each));
    std::set<int> live;
    for (const Argument& each : body.outputs) {
      graph.outputs.push_back(input_of(each));
      const std::vector<int>& slots = graph.outputs.back().slots;
      live.insert(slots.begin(), slots.end());
    }
    find_releases(graph.steps, std::move(live));
  }
  step.in_eval = in_eval(program, node);
  if (node.passed != kNoValue) step.passed = slot_of(node.passed);
  if (norm < 0 && node.running_mean != kNoValue) {
    for (const char* each : {"running_mean", "running_var"}) {
      if (const auto place = node.op->schema().argumentIndexWithName(each)) {
        step.loose_statistics.push_back(*place);
      }
    }
  }
  return step;
}

// Separates the constant nodes into arithmetic on sizes, which is cheaper than
// a look-up, and nodes whose results are kept.
void ProgramLayer::find_constants(const LayerPlan& plan) {
  const Program& program = model_->program;
  struct Origins {
    std::set<int> sizes, buffers;  // slots
  };
  std::map<int, Origins> kept;  // by slot
  std::set<ValueId> in_constants;
  for (const int k : plan.constants) {
    const Node& node = program.nodes[k];
    const bool reads_kept = std::ranges::any_of(node.reads, [&](ValueId each) {
      return kept.count(slot_of(each)) > 0;
    });
    if (node.operation && !reads_kept) {
      numbers_.push_back(step_of(node));
      continue;
    }
    constant_steps_.push_back(step_of(node));
    Origins origins;
    for (const ValueId each : node.reads) {
      const int slot = slot_of(each);
      if (const auto known = kept.find(slot); known != kept.end()) {
        origins.sizes.insert(known->second.sizes.begin(),
                             known->second.sizes.end());
        origins.buffers.insert(known->second.buffers.begin(),
                               known->second.buffers.end());
      } else if (program.values[each].is_tensor) {
        origins.buffers.insert(slot);
      } else {
        origins.sizes.insert(slot);
      }
    }
    for_each_result(node, [&](ValueId each) {
      kept[slot_of(each)] = origins;
      in_constants.insert(each);
    });
  }
  // Those that other nodes read, or that leave the layer.
  std::set<ValueId> read;
  const auto note = [&](ValueId each) {
    if (in_constants.count(each)) read.insert(each);
  };
  for (const int k : plan.nodes) {
    for (const ValueId each : program.nodes[k].reads) note(each);
  }
  for (const ValueId each : plan.outputs) note(each);
  for (const ValueId each : read) {
    const Origins& origins = kept[slot_of(each)];
    constants_.push_back({each,
                          slot_of(each),
                          {origins.sizes.begin(), origins.sizes.end()},
                          {origins.buffers.begin(), origins.buffers.end()}});
  }
}

// Finds the last use of each slot, so that memory is freed as in eager Python.
// `live`: slots that are read after the steps.
void ProgramLayer::find_releases(std::vector<Step>& steps, std::set<int> live) {
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto release = [&](const std::vector<int>& slots) {
      for (const int each : slots) {
        if (each >= 0 && live.insert(each).second) {
          step->released.push_back(each);
        }
      }
    };
    for (const Input& each : step->inputs) release(each.slots);
    for (const Output& each : step->outputs) release(each.slots);
  }
}

// ---- Running

namespace {

using c10::IValue;
using Kind = Argument::Kind;
using Stack = std::vector<IValue>;

namespace autocast = at::autocast;

constexpr char kAdapter[] = "lora";

// Returns the module that holds an adapter.
torch::nn::Module& adapter_holder(ProgramLayer& layer,
                                  const adapters::Adapter& adapter) {
  return *holder_of(layer, adapter.settings().name + "." + kAdapter).first;
}

// The state of gradients and of autocast on this thread, for the nodes that run
// next. Restores the caller's state at the end.
class RegionScope {
 public:
  // `device`: the type of the device on which the nodes run.
  explicit RegionScope(c10::DeviceType device) : device_(device) {}
  ~RegionScope() { leave(); }
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;

  // Leaves the present region and enters `region`.
  void enter(const Region& region) {
    leave();
    const Autocast* own = nullptr;
    for (const Autocast& each : region.autocasts) {
      if (each.device.value_or(device_) == device_) own = &each;
    }
    if (!region.no_grad && !own) return;
    inside_ = true;
    grad_ = c10::GradMode::is_enabled();
    if (region.no_grad) c10::GradMode::set_enabled(false);
    // Meta devices have no autocast: results keep the dtype of their inputs.
    if (!own || !autocast::is_autocast_available(device_)) return;
    autocast_ = true;
    enabled_ = autocast::is_autocast_enabled(device_);
    dtype_ = autocast::get_autocast_dtype(device_);
    cache_ = autocast::is_autocast_cache_enabled();
    autocast::set_autocast_enabled(device_, own->enabled);
    if (own->dtype) autocast::set_autocast_dtype(device_, *own->dtype);
    autocast::set_autocast_cache_enabled(own->cache);
    autocast::increment_nesting();
  }

 private:
  void leave() {
    if (!inside_) return;
    inside_ = false;
    c10::GradMode::set_enabled(grad_);
    if (!autocast_) return;
    autocast_ = false;
    // As Python's context manager: only the outermost region drops the casts.
    if (autocast::decrement_nesting() == 0) autocast::clear_cache();
    autocast::set_autocast_enabled(device_, enabled_);
    autocast::set_autocast_dtype(device_, dtype_);
    autocast::set_autocast_cache_enabled(cache_);
  }

  const c10::DeviceType device_;
  bool inside_ = false, autocast_ = false;
  // The caller's state.
  bool grad_ = false, enabled_ = false, cache_ = false;
  c10::ScalarType dtype_ = c10::ScalarType::Float;
};

// Returns the stream of a device on which this thread works; 0 on a CPU.
int64_t stream_of(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return 0;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

// Returns the list of get(k) for each of `count` elements.
template <typename T, typename Get>
IValue list_of(std::size_t count, const Get& get) {
  c10::List<T> list;
  list.reserve(count);
  for (std::size_t k = 0; k < count; ++k) list.push_back(get(k));
  return list;
}

// Returns a value that leaves a layer as a tensor. It is undefined if only
// nodes need it that eval() skips, such as those that count in a buffer: then
// the node that makes it is skipped as well. A size leaves as the size of a
// tensor without elements, which any device knows without waiting for a copy.
at::Tensor crossing(const IValue& value, c10::Device device) {
  if (value.isNone()) return at::Tensor();
  if (value.isTensor()) return value.toTensor();
  return at::empty({value.toInt(), 0},
                   at::TensorOptions().dtype(at::kLong).device(device));
}

// Returns a size: `value` itself, or the size of dimension `dimension` of a
// tensor. None if `value` is a tensor or a size that eval() skips.
IValue size_in(const IValue& value, int64_t dimension) {
  if (!value.isTensor()) return value;
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() ? IValue(tensor.size(dimension)) : IValue();
}

// Throws if an operator without a gradient has returned `results` from tensors
// that require one.
void check_no_gradient(const Stack& results) {
  const auto check = [](const at::Tensor& result) {
    TORCH_CHECK_VALUE(
        !result.requires_grad(),
        "this operator has no gradient in C++: the library that registers it "
        "has none (one of Python's torch.library.register_autograd is not in "
        "the library). Register one in C++, or call the operator under "
        "torch.no_grad()");
  };
  for (const IValue& each : results) {
    if (each.isTensor()) check(each.toTensor());
    if (!each.isTensorList()) continue;
    for (const at::Tensor& tensor : each.toTensorVector()) check(tensor);
  }
}

}  // namespace

void ProgramLayer::pretty_print(std::ostream& stream) const {
  stream << name() << "(" << steps_.size() << " nodes)";
}

AdapterRoute adapter_route(const Model& model,
                           adapters::AdapterSettings settings,
                           const std::vector<LinearNode>& nodes) {
  AdapterRoute route{std::move(settings), nodes, {}};
  const auto owns = [&](ValueId each) {
    return model.program.values[each].weight == nodes[0].weight;
  };
  for (std::size_t k = 0; k < model.plans.size(); ++k) {
    const LayerPlan& plan = model.plans[k];
    const bool sees =
        std::ranges::any_of(plan.weights, owns) ||
        std::ranges::any_of(nodes, [&](const LinearNode& each) {
          return std::ranges::binary_search(plan.nodes, each.node);
        });
    if (sees) route.layers.push_back(static_cast<int>(k));
  }
  return route;
}

void ProgramLayer::add_adapter(const AdapterRoute& route,
                               std::shared_ptr<adapters::Adapter> adapter) {
  const auto here = std::ranges::find(route.layers, place_);
  if (here == route.layers.end()) return;
  const std::string& module = route.settings.name;
  const auto [found, is_new] = adapters_.try_emplace(module);
  StepAdapter& own = found->second;
  own.settings = route.settings;
  if (is_new) {  // else the slots are those of an adapter that was removed
    own.a = new_slot();
    own.b = new_slot();
    Names names;
    const auto hops = here - route.layers.begin();
    for (const int slot : {own.a, own.b}) {
      const std::string name = model_->name + "/" + module +
                               (slot == own.a ? ".lora_A." : ".lora_B.");
      if (hops > 0) {
        names.pop.push_back(name + std::to_string(hops - 1));
        pops_.push_back({slot, names.pop.back(), /*is_size=*/false});
      }
      if (here + 1 != route.layers.end()) {
        names.stash.push_back(name + std::to_string(hops));
        stashes_.push_back({slot, names.stash.back(), /*is_size=*/false});
      }
    }
    declare(names);
    for (const LinearNode& linear : route.nodes) {
      for (Step& step : steps_) {
        if (step.node != &model_->program.nodes[linear.node]) continue;
        step.adapter = &own;
        step.adapted = linear.input;
      }
    }
  }
  if (!adapter) return;
  own_.emplace_back(own.a, adapter->a());
  own_.emplace_back(own.b, adapter->b());
  adapter_holder(*this, *adapter).register_module(kAdapter, adapter);
}

void ProgramLayer::remove_adapter(const adapters::Adapter& adapter) {
  const StepAdapter& own = adapters_.at(adapter.settings().name);
  std::erase_if(own_, [&](const auto& each) {
    return each.first == own.a || each.first == own.b;
  });
  adapter_holder(*this, adapter).unregister_module(kAdapter);
}

std::vector<at::Tensor> ProgramLayer::run(std::vector<at::Tensor> inputs) {
  if (place_ == 0) check_inputs(inputs);
  TORCH_CHECK_VALUE(inputs.size() == inputs_.size(), "layer '", name(),
                    "' takes ", inputs_.size(), " tensors, but got ",
                    inputs.size());
  c10::Device device(c10::kCPU);
  // Inputs that only nodes of training read are undefined in eval().
  const auto known = std::ranges::find_if(
      inputs, [](const at::Tensor& each) { return each.defined(); });
  if (!own_.empty()) {
    device = own_[0].second.device();
  } else if (known != inputs.end()) {
    device = known->device();
  }
  Slots slots(slots_.size());
  for (const auto& [slot, tensor] : own_) slots[slot] = tensor;
  use_buffer_set(slots);
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    slots[inputs_[k]] = std::move(inputs[k]);
  }
  inputs.clear();
  for (const Skip& each : pops_) {
    const IValue value = pop(each.name).value_or(at::Tensor());
    slots[each.slot] = each.is_size ? size_in(value, 0) : value;
  }
  for (const Size& each : sizes_) {
    const IValue size = each.from < 0
                            ? IValue(int64_t{1})
                            : size_in(slots[each.from], each.dimension);
    if (size.isNone()) continue;
    slots[each.slot] = size.toInt() / each.divisor * each.factor;
  }
  run_steps(numbers_, slots, device);
  if (!constants_.empty()) run_constants(slots, device);
  run_steps(steps_, slots, device);

  for (const Skip& each : stashes_) {
    const at::Tensor tensor = crossing(slots[each.slot], device);
    stash(each.name,
          tensor.defined() ? std::make_optional(tensor) : std::nullopt);
  }
  std::vector<at::Tensor> outputs;
  outputs.reserve(outputs_.size());
  for (const int each : outputs_) {
    outputs.push_back(crossing(slots[each], device));
  }
  // The caller may change an output, but not the cache.
  for (const int each : cloned_outputs_) outputs[each] = outputs[each].clone();
  return outputs;
}

void ProgramLayer::use_buffer_set(Slots& slots) {
  const std::vector<int64_t>& sets = model_->buffer_sets;
  if (sets.empty() && buffer_sets_.empty()) return;
  if (!state_.empty() && is_recomputing()) {
    TORCH_CHECK_VALUE(buffer_sets_.empty(),
                      "the first forward may have changed the buffers of a "
                      "set, so that this layer cannot be computed again from "
                      "them; use Checkpoint::kNever with use_buffer_sets()");
    return;
  }
  std::erase_if(buffer_sets_, [&](const auto& each) {
    return std::ranges::find(sets, each.first) == sets.end();
  });
  if (sets.empty()) return;
  const int64_t microbatch = current_microbatch().value_or(0);
  TORCH_CHECK_VALUE(microbatch < static_cast<int64_t>(sets.size()),
                    "there are ", sets.size(),
                    " sets of buffers, but this is micro-batch ", microbatch,
                    "; call use_buffer_sets() with one for each micro-batch");
  const auto [set, is_new] = buffer_sets_.try_emplace(sets[microbatch]);
  std::vector<at::Tensor>& buffers = set->second;
  for (std::size_t k = 0; k < state_.size(); ++k) {
    const auto& [slot, tensor] = own_[state_[k]];
    if (is_new) buffers.push_back(tensor.detach().clone());
    slots[slot] = buffers[k];
  }
}

void ProgramLayer::check_inputs(const std::vector<at::Tensor>& inputs) const {
  const Program& program = model_->program;
  TORCH_CHECK_VALUE(inputs.size() == program.inputs.size(),
                    "the exported program takes ", program.inputs.size(),
                    " tensors, but got ", inputs.size());
  std::map<int, std::pair<int64_t, std::string>> known;  // by symbol
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    const Value& value = program.values[program.inputs[k]];
    const std::string input = "input '" + value.name + "' of the program";
    TORCH_CHECK_VALUE(inputs[k].defined(), input, " is undefined");
    TORCH_CHECK_VALUE(
        inputs[k].dim() == static_cast<int64_t>(value.sizes.size()), input,
        " was exported with ", value.sizes.size(), " dimensions, but has ",
        inputs[k].dim());
    for (std::size_t d = 0; d < value.sizes.size(); ++d) {
      const Extent& extent = value.sizes[d];
      const int64_t size = inputs[k].size(static_cast<int64_t>(d));
      if (extent.symbol == Extent::kNone) {
        TORCH_CHECK_VALUE(
            size == extent.factor, input, " was exported with size ",
            extent.factor, " in dimension ", d, ", but has ", size,
            "; export with dynamic_shapes={", d,
            ": torch.export.Dim(...)} for this input",
            d == 0 ? ", because a pipeline splits dimension 0" : "");
        continue;
      }
      TORCH_CHECK_VALUE(size % extent.factor == 0, input, " has size ", size,
                        " in dimension ", d, ", but was exported for ",
                        program.symbols.text(extent), ", a multiple of ",
                        extent.factor);
      const int64_t symbol = size / extent.factor;
      const Range& range = program.symbols.range(extent.symbol);
      // With Dim.AUTO the file says 2 or more, but operators take fewer.
      // adapt_to_mode() checks BatchNorm, which does not.
      const int64_t least = range.least <= 2 ? 0 : range.least;
      const int64_t largest = program.symbols.largest(extent);
      TORCH_CHECK_VALUE(
          symbol >= least && symbol <= range.most, input, " has size ", size,
          " in dimension ", d, ", but was exported for ", least * extent.factor,
          largest == std::numeric_limits<int64_t>::max()
              ? " or more"
              : " to " + std::to_string(largest),
          d > 0 ? "; export with a range that holds this size"
                : "; a pipeline splits dimension 0 into micro-batches, so "
                  "export with a range that holds the rows of each");
      const auto [found, is_new] = known.try_emplace(
          extent.symbol, symbol, input + " in dimension " + std::to_string(d));
      TORCH_CHECK_VALUE(is_new || found->second.first == symbol, input,
                        " has size ", size, " in dimension ", d,
                        ", but it was exported as ",
                        program.symbols.text(extent), " with ",
                        program.symbols.name(extent.symbol), " = ",
                        found->second.first, " from ", found->second.second);
    }
  }
}

ConstantKey ProgramLayer::key_of(const Constant& constant, const Slots& slots,
                                 c10::Device device) const {
  const c10::DeviceType type = device.type();
  const bool autocast = at::autocast::is_autocast_available(type) &&
                        at::autocast::is_autocast_enabled(type);
  ConstantKey key = {
      static_cast<int64_t>(type), device.index(), stream_of(device),
      autocast ? static_cast<int64_t>(at::autocast::get_autocast_dtype(type))
               : -1};
  for (const int each : constant.sizes) {
    const IValue& value = slots[each];
    key.push_back(value.isDouble() ? std::bit_cast<int64_t>(value.toDouble())
                  : value.isBool() ? int64_t(value.toBool())
                  : value.isNone() ? -1  // eval() skips it
                                   : value.toInt());
  }
  for (const int each : constant.buffers) {
    const at::Tensor& buffer = slots[each].toTensor();
    key.insert(key.end(), {number_, version_of(buffer),
                           static_cast<int64_t>(buffer.scalar_type())});
  }
  return key;
}

ConstantCache::Id ProgramLayer::id_of(const Constant& constant,
                                      const Slots& slots) const {
  const bool is_as_read =
      std::ranges::all_of(constant.buffers, [&](const int each) {
        const at::Tensor& buffer = slots[each].toTensor();
        return version_of(buffer) == versions_.at(each);
      });
  return {constant.value, is_as_read ? -1 : place_};
}

namespace {

// Returns whether a dry run, such as that of balance_by_size(), has put a meta
// tensor in the place of one of `device`. The cache must not keep it.
bool lacks_values(const IValue& value, c10::Device device) {
  return value.isTensor() && value.toTensor().is_meta() && !device.is_meta();
}

}  // namespace

void ProgramLayer::run_constants(Slots& slots, c10::Device device) {
  const bool has_graph =
      c10::GradMode::is_enabled() &&
      std::ranges::any_of(constants_, [&](const Constant& each) {
        return std::ranges::any_of(each.buffers, [&](const int buffer) {
          return slots[buffer].toTensor().requires_grad();
        });
      });
  // A graph is for one backward. Inference tensors cannot be saved for one, and
  // have no versions.
  if (has_graph || c10::InferenceMode::is_enabled()) {
    run_steps(constant_steps_, slots, device);
    return;
  }
  std::vector<std::pair<ConstantCache::Id, ConstantKey>> keys;
  keys.reserve(constants_.size());
  bool all = true;
  for (const Constant& each : constants_) {
    const auto& [id, key] =
        keys.emplace_back(id_of(each, slots), key_of(each, slots, device));
    slots[each.slot] = model_->constants.find(id, key);
    all = all && !slots[each.slot].isNone();
  }
  if (all) return;
  run_steps(constant_steps_, slots, device);
  for (std::size_t k = 0; k < constants_.size(); ++k) {
    const Constant& each = constants_[k];
    if (lacks_values(slots[each.slot], device)) continue;
    auto& [id, key] = keys[k];
    if (model_->constants.find(id, key).isNone()) {
      model_->constants.insert(id, std::move(key), slots[each.slot]);
    }
  }
}

void ProgramLayer::push_arguments(const std::vector<Input>& inputs,
                                  const Slots& slots, c10::Device device,
                                  Stack& stack) {
  for (const Input& input : inputs) {
    const Argument& argument = *input.argument;
    const std::size_t count = input.slots.size();
    switch (argument.kind) {
      case Kind::kConstant:
        stack.push_back(argument.constant);
        break;
      case Kind::kValue: {
        const IValue& value = slots[input.slots[0]];
        if (argument.wants_tensor && !value.isTensor()) {
          stack.emplace_back(wrapped_number(value));
        } else {
          stack.push_back(value);
        }
        break;
      }
      case Kind::kDevice:
        stack.emplace_back(device);
        break;
      case Kind::kTensors:
        stack.push_back(list_of<at::Tensor>(count, [&](std::size_t k) {
          return slots[input.slots[k]].toTensor();
        }));
        break;
      case Kind::kOptionalTensors:
        stack.push_back(
            list_of<std::optional<at::Tensor>>(count, [&](std::size_t k) {
              const int slot = input.slots[k];
              return slot < 0 ? std::nullopt
                              : std::make_optional(slots[slot].toTensor());
            }));
        break;
      case Kind::kIntegers:
        stack.push_back(list_of<int64_t>(count, [&](std::size_t k) {
          const int slot = input.slots[k];
          return slot < 0 ? argument.elements[k].number : slots[slot].toInt();
        }));
        break;
    }
  }
}

void ProgramLayer::adapt_to_mode(const Step& step, Stack& stack) const {
  const Node& node = *step.node;
  const bool training =
      step.norm >= 0 ? norms_[step.norm]->is_training() : is_training();
  if (!training) {
    for (const int each : node.training_flags) stack[each] = false;
    for (const int each : node.dropout_rates) stack[each] = 0.0;
    return;
  }
  if (node.running_mean != kNoValue &&
      node.op->operator_name().name == "aten::batch_norm") {
    // Python's functions check it, which the file does not have. The variance
    // of one value would be NaN, and stay in the running statistics.
    const at::Tensor& input = stack[0].toTensor();
    TORCH_CHECK_VALUE(
        input.dim() < 2 || input.size(1) == 0 || input.numel() != input.size(1),
        "Expected more than 1 value per channel when training, but the input "
        "of this BatchNorm has the sizes ",
        input.sizes(), "; give micro-batches of at least 2 rows");
  }
  if (is_recomputing()) {
    // The forward has updated them. In training the result does not depend on
    // them.
    for (const int each : step.loose_statistics) stack[each] = IValue();
  }
}

void ProgramLayer::run_control_flow(const Step& step, Slots& slots,
                                    c10::Device device, Stack& stack) {
  std::vector<Stack> arguments;
  for (const Input& input : step.inputs) {
    Stack& values = arguments.emplace_back();
    for (const int each : input.slots) values.push_back(slots[each]);
    if (input.argument->kind == Kind::kConstant) {
      values.push_back(input.argument->constant);
    }
  }
  const auto run = [&](std::size_t number, Stack inputs) {
    const Graph& graph = step.graphs[number];
    TORCH_INTERNAL_ASSERT(inputs.size() == graph.inputs.size());
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      slots[graph.inputs[k]] = std::move(inputs[k]);
    }
    inputs.clear();
    run_steps(graph.steps, slots, device, step.node->region);
    Stack outputs;
    push_arguments(graph.outputs, slots, device, outputs);
    for (const int each : graph.inputs) slots[each] = IValue();
    for (const Input& output : graph.outputs) {
      for (const int each : output.slots) slots[each] = IValue();
    }
    return outputs;
  };
  stack = run_control(step.node->control, arguments, run);
  // In Python, a later change of a result does not reach what the node saved.
  for (std::size_t k = 0; k < stack.size(); ++k) {
    const ValueId value = step.node->results[k].values[0];
    if (value != kNoValue && model_->program.values[value].written) {
      stack[k] = stack[k].toTensor().clone();
    }
  }
}

bool ProgramLayer::is_skipped(const Step& step, Slots& slots) const {
  if (is_training() || step.in_eval == InEval::kRun) return false;
  const bool is_change = step.in_eval != InEval::kPass && !step.node->random;
  if (is_change && !model_->buffer_sets.empty()) return false;
  TORCH_CHECK_VALUE(
      step.in_eval != InEval::kRefuse,
      "the exported program cannot be switched to eval(): this node ",
      refusal_of(*step.node),
      "; export the model in eval mode as a second program");
  if (step.in_eval == InEval::kPass) {
    slots[step.outputs[0].slots[0]] = slots[step.passed];
  }
  return true;
}

void ProgramLayer::run_node(const Step& step, Slots& slots, c10::Device device,
                            Stack& stack) {
  const Node& node = *step.node;
  stack.clear();
  if (node.control != Control::kNone) {
    run_control_flow(step, slots, device, stack);
    return;
  }
  push_arguments(step.inputs, slots, device, stack);
  if (!node.op) {
    stack = {result_of(*node.operation, stack)};
    return;
  }
  if (!node.training_flags.empty() || !node.dropout_rates.empty()) {
    adapt_to_mode(step, stack);
  }
  at::Tensor a, adapted;
  if (step.adapter && slots[step.adapter->a].isTensor()) {
    a = slots[step.adapter->a].toTensor();
    adapted = stack.at(step.adapted).toTensor();
  }
  node.op->callBoxed(stack);
  if (node.lacks_gradient) check_no_gradient(stack);
  if (a.defined()) {
    stack[0] = adapters::add_adapter(
        step.adapter->settings, a, slots[step.adapter->b].toTensor(),
        is_training(), stack[0].toTensor(), adapted);
  }
}

void ProgramLayer::store(const Step& step, Stack& results, Slots& slots) {
  for (std::size_t k = 0; k < step.outputs.size(); ++k) {
    const Output& output = step.outputs[k];
    if (!output.is_list) {
      if (output.slots[0] >= 0) slots[output.slots[0]] = std::move(results[k]);
      continue;
    }
    const std::vector<at::Tensor> list = results[k].toTensorVector();
    TORCH_CHECK_VALUE(list.size() == output.slots.size(), "returned ",
                      list.size(), " tensors, but ", output.slots.size(),
                      " when it was exported");
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (output.slots[i] >= 0) slots[output.slots[i]] = list[i];
    }
  }
}

void ProgramLayer::run_steps(const std::vector<Step>& steps, Slots& slots,
                             c10::Device device, int region) {
  RegionScope scope(device.type());
  Stack stack;
  const Step* running = nullptr;
  try {
    for (const Step& step : steps) {
      running = &step;
      if (!is_skipped(step, slots)) {
        if (step.node->region != region) {
          region = step.node->region;
          scope.enter(model_->program.regions[region]);
        }
        run_node(step, slots, device, stack);
        store(step, stack, slots);
      }
      for (const int each : step.released) slots[each] = IValue();
    }
  } catch (c10::Error& error) {
    error.add_context("in " + place_of(*running->node));
    throw;
  }
}

}  // namespace gpipe::exported
