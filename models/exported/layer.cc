#include "models/exported/layer.h"

#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <ostream>

#include "gpipe/gpipe.h"
#include "models/exported/arguments.h"
#include "models/exported/control_flow.h"
#include "models/exported/region_scope.h"

namespace gpipe::exported {
namespace {

using c10::IValue;
using Kind = Argument::Kind;
using Stack = std::vector<IValue>;

constexpr char kAdapter[] = "lora";

// Returns the stream of a device on which this thread works; 0 on a CPU.
int64_t stream_of(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return 0;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).id();
}

IValue list_of_tensors(const std::vector<int>& slots, const Stack& values) {
  c10::List<at::Tensor> list;
  list.reserve(slots.size());
  for (const int each : slots) list.push_back(values[each].toTensor());
  return list;
}

IValue list_of_optional_tensors(const std::vector<int>& slots,
                                const Stack& values) {
  c10::List<std::optional<at::Tensor>> list;
  list.reserve(slots.size());
  for (const int each : slots) {
    list.push_back(each < 0 ? std::nullopt
                            : std::make_optional(values[each].toTensor()));
  }
  return list;
}

IValue list_of_integers(const Argument& argument, const std::vector<int>& slots,
                        const Stack& values) {
  c10::List<int64_t> list;
  list.reserve(slots.size());
  for (std::size_t k = 0; k < slots.size(); ++k) {
    list.push_back(slots[k] < 0 ? argument.elements[k].number
                                : values[slots[k]].toInt());
  }
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

bool ProgramLayer::runs(int node) const {
  const Node* const wanted = &program().nodes[node];
  return std::any_of(steps_.begin(), steps_.end(),
                     [&](const Step& each) { return each.node == wanted; });
}

void ProgramLayer::add_adapter(const std::vector<LinearNode>& nodes,
                               std::shared_ptr<adapters::Adapter> adapter) {
  register_child(*this, adapter->settings().name, kAdapter, adapter);
  for (const LinearNode& linear : nodes) {
    for (Step& step : steps_) {
      if (step.node != &program().nodes[linear.node]) continue;
      step.adapter = adapter;
      step.adapted = linear.input;
    }
  }
}

void ProgramLayer::remove_adapter(const adapters::Adapter& adapter) {
  for (Step& step : steps_) {
    if (step.adapter.get() == &adapter) step.adapter = nullptr;
  }
  unregister_child(*this, adapter.settings().name, kAdapter);
}

std::vector<at::Tensor> ProgramLayer::run(std::vector<at::Tensor> inputs) {
  if (is_first_) check_inputs(inputs);
  TORCH_CHECK_VALUE(inputs.size() == inputs_.size(), "layer '", name(),
                    "' takes ", inputs_.size(), " tensors, but got ",
                    inputs.size());
  c10::Device device(c10::kCPU);
  if (!own_.empty()) {
    device = own_[0].second.device();
  } else if (!inputs.empty() && inputs[0].defined()) {
    device = inputs[0].device();
  }
  Slots slots(slots_.size());
  for (const auto& [slot, tensor] : own_) slots[slot] = tensor;
  if (!model_->buffer_sets.empty()) use_buffer_set(slots);
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
  const int64_t microbatch = current_microbatch().value_or(0);
  TORCH_CHECK_VALUE(microbatch < static_cast<int64_t>(sets.size()),
                    "there are ", sets.size(),
                    " sets of buffers, but this is micro-batch ", microbatch,
                    "; call use_buffer_sets() with one for each micro-batch");
  std::erase_if(buffer_sets_, [&](const auto& each) {
    return std::find(sets.begin(), sets.end(), each.first) == sets.end();
  });
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
      // With Dim.AUTO the file says 2 or more, but 1 works as well.
      const int64_t least = range.least <= 2 ? 0 : range.least;
      TORCH_CHECK_VALUE(
          symbol >= least && symbol <= range.most, input, " has size ", size,
          " in dimension ", d, ", but was exported for ", least * extent.factor,
          " to ", range.most, " times ", extent.factor,
          "; a pipeline splits dimension 0 into micro-batches, so export with "
          "a range that holds the rows of each");
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
    key.push_back(static_cast<int64_t>(buffer._version()));
    key.push_back(static_cast<int64_t>(buffer.scalar_type()));
  }
  return key;
}

namespace {

// Returns whether a dry run, such as that of balance_by_size(), has put a meta
// tensor in the place of one of `device`. The cache must not keep it.
bool lacks_values(const IValue& value, c10::Device device) {
  return value.isTensor() && value.toTensor().is_meta() && !device.is_meta();
}

}  // namespace

void ProgramLayer::run_constants(Slots& slots, c10::Device device) {
  // Inference tensors cannot be saved for a backward, and have no versions.
  if (c10::InferenceMode::is_enabled()) {
    run_steps(constant_steps_, slots, device);
    return;
  }
  std::vector<ConstantKey> keys;
  keys.reserve(constants_.size());
  bool all = true;
  for (const Constant& each : constants_) {
    keys.push_back(key_of(each, slots, device));
    slots[each.slot] = model_->constants.find(each.value, keys.back());
    all = all && !slots[each.slot].isNone();
  }
  if (all) return;
  run_steps(constant_steps_, slots, device);
  for (std::size_t k = 0; k < constants_.size(); ++k) {
    const Constant& each = constants_[k];
    if (lacks_values(slots[each.slot], device)) continue;
    if (model_->constants.find(each.value, keys[k]).isNone()) {
      model_->constants.insert(each.value, std::move(keys[k]),
                               slots[each.slot]);
    }
  }
}

void ProgramLayer::push_arguments(const std::vector<Input>& inputs,
                                  const Slots& slots, c10::Device device,
                                  Stack& stack) {
  for (const Input& input : inputs) {
    const Argument& argument = *input.argument;
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
        stack.push_back(list_of_tensors(input.slots, slots));
        break;
      case Kind::kOptionalTensors:
        stack.push_back(list_of_optional_tensors(input.slots, slots));
        break;
      case Kind::kIntegers:
        stack.push_back(list_of_integers(argument, input.slots, slots));
        break;
    }
  }
}

void ProgramLayer::adapt_to_mode(const Step& step, Stack& stack) const {
  const Node& node = *step.node;
  const bool training =
      step.norm >= 0 ? norms_[step.norm].is_training() : is_training();
  if (!training) {
    for (const int each : node.training_flags) stack[each] = false;
    for (const int each : node.dropout_rates) stack[each] = 0.0;
  } else if (is_recomputing()) {
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
    if (input.slots.empty()) values.push_back(input.argument->constant);
  }
  const auto run = [&](std::size_t number, Stack inputs) {
    const Graph& graph = step.graphs[number];
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

void ProgramLayer::run_steps(const std::vector<Step>& steps, Slots& slots,
                             c10::Device device, int region) {
  const Program& program = model_->program;
  const bool training = is_training();
  // Whether nodes that change buffers run in eval mode.
  const bool changes_sets = !model_->buffer_sets.empty();
  RegionScope scope(device.type());
  Stack stack;
  const Step* running = nullptr;
  try {
    for (const Step& step : steps) {
      const Node& node = *step.node;
      running = &step;
      const bool is_change =
          changes_sets && step.in_eval != InEval::kPass && !node.random;
      if (!training && step.in_eval != InEval::kRun && !is_change) {
        TORCH_CHECK_VALUE(
            step.in_eval != InEval::kRefuse,
            "the exported program cannot be switched to eval(): this node ",
            refusal_of(node),
            "; export the model in eval mode as a second program");
        if (step.in_eval == InEval::kPass) {
          slots[step.outputs[0].slots[0]] = slots[step.passed];
        }
        for (const int each : step.released) slots[each] = IValue();
        continue;
      }
      if (node.region != region) {
        region = node.region;
        scope.enter(program.regions[region]);
      }
      stack.clear();
      if (node.control == Control::kNone) {
        push_arguments(step.inputs, slots, device, stack);
      }
      if (node.control != Control::kNone) {
        run_control_flow(step, slots, device, stack);
      } else if (node.op) {
        if (!node.training_flags.empty() || !node.dropout_rates.empty()) {
          adapt_to_mode(step, stack);
        }
        const IValue adapted = step.adapter ? stack.at(step.adapted) : IValue();
        node.op->callBoxed(stack);
        if (node.lacks_gradient) check_no_gradient(stack);
        if (step.adapter) {
          stack[0] =
              step.adapter->forward(stack[0].toTensor(), adapted.toTensor());
        }
      } else {
        const IValue result =
            node.operation->compute(stack.front(), stack.back());
        stack.assign(1, result);
      }
      for (std::size_t k = 0; k < step.outputs.size(); ++k) {
        const Output& output = step.outputs[k];
        if (!output.is_list) {
          if (output.slots[0] >= 0)
            slots[output.slots[0]] = std::move(stack[k]);
          continue;
        }
        const std::vector<at::Tensor> list = stack[k].toTensorVector();
        TORCH_CHECK_VALUE(list.size() == output.slots.size(), "returned ",
                          list.size(), " tensors, but ", output.slots.size(),
                          " when it was exported");
        for (std::size_t i = 0; i < list.size(); ++i) {
          if (output.slots[i] >= 0) slots[output.slots[i]] = list[i];
        }
      }
      for (const int each : step.released) slots[each] = IValue();
    }
  } catch (c10::Error& error) {
    error.add_context("in " + place_of(*running->node));
    throw;
  }
}

}  // namespace gpipe::exported
