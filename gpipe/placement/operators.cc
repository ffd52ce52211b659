// What happens before an operator that is given a marked tensor: its inputs are
// brought together. See the rules in gpipe/placement.h.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "gpipe/dispatch/registration.h"
#include "gpipe/dispatch/tensors_in.h"
#include "gpipe/placement/place.h"
#include "gpipe/placement/tag.h"

namespace gpipe::placement {
namespace {

// Operators whose arguments may be on several devices, or whose business these
// are.
bool takes_any_devices(const std::string& name) {
  static const auto* const names = new std::unordered_set<std::string>{
      "aten::copy_",
      "aten::copy",
      "aten::_copy_from",
      "aten::_copy_from_and_resize",
      "aten::to",
      "aten::type_as",
      "aten::set_",
      "aten::set_data",
      "aten::expand_as",
      "aten::reshape_as",
      "aten::view_as",
      "aten::resize_as_",
      "aten::resize_as_sparse_",
      "aten::is_set_to",
      "aten::is_same_size",
      "aten::result_type",
      "aten::_has_compatible_shallow_copy_type",
      "aten::_has_same_storage_numel",
  };
  const auto begins = [&](const char* prefix) {
    return name.rfind(prefix, 0) == 0;
  };
  return begins("aten::_foreach_") || begins("aten::_fused_") ||
         begins("aten::_amp_foreach_") || names->count(name) > 0;
}

// Arguments that LibTorch wants on the CPU, wherever the others are.
bool stays_on_cpu(const std::string& argument) {
  return argument == "batch_sizes" || argument == "lengths" ||
         argument == "tensor_indices_or_sections";
}

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// What LibTorch takes beside tensors on any device.
bool is_cpu_number(const at::Tensor& tensor) {
  return tensor.dim() == 0 && tensor.device().is_cpu();
}

void for_each_defined(const c10::IValue& value,
                      c10::function_ref<void(const at::Tensor&)> visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      if (each.isInt() || each.isDouble() || each.isBool()) return;
      for_each_defined(each, visit);
    }
  }
}

// Devices that are all the same, or not.
struct Agreement {
  std::optional<c10::Device> device;
  bool mixed = false;

  void add(c10::Device other) {
    if (!device) device = other;
    mixed = mixed || *device != other;
  }
};

// Where those arguments are from that are marked.
struct Origin {
  Agreement devices;
  PlacePtr place;
  bool any = false;

  void add(const at::Tensor& tensor, PlacePtr from) {
    devices.add(tensor.device());
    place = any ? common_place(place, from) : std::move(from);
    any = true;
  }
};

struct Arguments {
  Origin weights, data;
  bool others = false;   // unmarked ones
  bool numbers = false;  // unmarked ones that may stay on the CPU
  bool direct = true;    // all weights are
  bool gradients = false;
  Agreement devices;
  c10::SmallVector<at::Tensor, 4> unmarked;

  void add(const at::Tensor& tensor, bool is_written) {
    const Tag* const tag = tag_of(tensor);
    PlacePtr place = tag ? active_place(tag->place) : nullptr;
    if (!place) {
      unmarked.push_back(tensor);
      // A scalar that LibTorch has made a tensor of is nobody's input.
      others = others || !tensor.unsafeGetTensorImpl()->is_wrapped_number();
      if (is_cpu_number(tensor) && !is_written) {
        numbers = true;
        return;
      }
    } else if (tag->kind == Tag::Kind::kWeight) {
      direct = direct && tag->direct && tag->place == place;
      weights.add(tensor, std::move(place));
    } else {
      gradients = gradients || tag->kind == Tag::Kind::kGradient;
      data.add(tensor, std::move(place));
    }
    devices.add(tensor.device());
  }

  bool only_weights() const { return weights.any && !data.any && !others; }

  // Whose the result is.
  const PlacePtr& place() const {
    return weights.any ? weights.place : data.place;
  }
};

c10::ArrayRef<c10::IValue> arguments_of(const c10::FunctionSchema& schema,
                                        const torch::jit::Stack& stack) {
  const std::size_t count = schema.arguments().size();
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count, count);
}

// Where the operator shall run; none if it can be left alone, or if LibTorch
// shall say what is wrong.
std::optional<c10::Device> meeting_place(const c10::FunctionSchema& schema,
                                         c10::ArrayRef<c10::IValue> values,
                                         const Arguments& given) {
  Agreement counted;
  std::optional<c10::Device> written;
  for (std::size_t k = 0; k < values.size(); ++k) {
    const c10::Argument& argument = schema.arguments()[k];
    if (stays_on_cpu(argument.name())) continue;
    for_each_defined(values[k], [&](const at::Tensor& tensor) {
      if (is_written(argument)) {
        if (!written) written = tensor.device();
      } else if (is_cpu_number(tensor) && !tag_of(tensor) &&
                 !given.weights.any) {
        return;
      }
      counted.add(tensor.device());
    });
  }
  if (!counted.mixed || takes_any_devices(schema.name())) return std::nullopt;
  if (written) return written;
  if (given.weights.any) {
    if (!given.weights.devices.mixed) return given.weights.devices.device;
    if (!given.weights.place) return std::nullopt;
    return given.weights.place->processing;
  }
  // Data alone. What has left its module counts as if it were where the module
  // puts its output.
  Agreement expected;
  for (const c10::IValue& value : values) {
    for_each_defined(value, [&](const at::Tensor& tensor) {
      const Tag* const tag = tag_of(tensor);
      const PlacePtr from = tag ? active_place(tag->place) : nullptr;
      if (!from) return;
      const auto exit =
          given.data.place ? exit_device(from, given.data.place) : std::nullopt;
      expected.add(exit.value_or(tensor.device()));
    });
  }
  if (!expected.mixed) return expected.device;
  if (!given.data.place) return std::nullopt;
  return given.data.place->processing;
}

void bring(const c10::FunctionSchema& schema, c10::Device device,
           bool also_numbers, torch::jit::Stack& stack) {
  const std::size_t count = schema.arguments().size();
  for (std::size_t k = 0; k < count; ++k) {
    const c10::Argument& argument = schema.arguments()[k];
    if (is_written(argument) || stays_on_cpu(argument.name())) continue;
    c10::IValue& value = stack[stack.size() - count + k];
    if (!value.isTensor() && !value.isList()) continue;
    value = with_tensors(value, [&](const at::Tensor& tensor) {
      if (tensor.device() == device) return tensor;
      if (is_cpu_number(tensor) && !tag_of(tensor) && !also_numbers) {
        return tensor;
      }
      return tensor.to(device);
    });
  }
}

// In the backward of one of LibTorch's operators, where a weight is an operand
// of a gradient and nothing that its module gives out.
bool in_backward() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return false;
  // Not when a forward is run again, in the backward of somebody's Function.
  return !c10::GradMode::is_enabled() ||
         dynamic_cast<torch::autograd::TraceableFunction*>(node.get());
}

// Where the module of `given`'s weights puts its output, if the operator makes
// it.
std::optional<c10::Device> output_device(const c10::FunctionSchema& schema,
                                         const Arguments& given) {
  const PlacePtr& place = given.weights.place;
  // Gradients meet weights in an optimizer.
  if (!place || !given.direct || !place->output || given.only_weights() ||
      given.gradients || takes_any_devices(schema.name())) {
    return std::nullopt;
  }
  const auto& arguments = schema.arguments();
  if (std::any_of(arguments.begin(), arguments.end(), is_written) ||
      in_backward()) {
    return std::nullopt;
  }
  return place->output;
}

void mark(const at::Tensor& tensor, const Arguments& given) {
  const bool only_weights = given.only_weights();
  if (const Tag* const tag = tag_of(tensor)) {
    const PlacePtr place = active_place(tag->place);
    // Weights stay weights, also if data are written to them.
    if (place && (tag->kind == Tag::Kind::kWeight || place == given.place())) {
      return;
    }
  } else if (std::any_of(given.unmarked.begin(), given.unmarked.end(),
                         [&](const at::Tensor& each) {
                           return each.is_same(tensor);
                         })) {
    return;  // written to
  }
  const auto kind = only_weights                       ? Tag::Kind::kWeight
                    : given.gradients || in_backward() ? Tag::Kind::kGradient
                                                       : Tag::Kind::kData;
  set_tag(tensor, c10::make_intrusive<Tag>(given.place(), kind,
                                           only_weights && given.direct));
}

void place_inputs(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  // What the operator calls in turn finds everything in one place.
  const c10::impl::ExcludeDispatchKeyGuard done(kPlacementKey);
  const c10::FunctionSchema& schema = op.schema();

  Arguments given;
  const auto values = arguments_of(schema, *stack);
  for (std::size_t k = 0; k < values.size(); ++k) {
    for_each_defined(values[k], [&](const at::Tensor& tensor) {
      given.add(tensor, is_written(schema.arguments()[k]));
    });
  }

  // Beside weights a number goes with the others: an index must.
  const auto device =
      given.devices.mixed || (given.numbers && given.weights.any)
          ? meeting_place(schema, values, given)
          : std::nullopt;
  if (device) {
    bring(schema, *device, given.weights.any, *stack);
    op.callBoxed(stack);  // its keys are others now
  } else {
    op.redispatchBoxed(
        keys &
            c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kPlacementKey),
        stack);
  }
  if (!given.place()) return;

  const std::size_t first = stack->size() - schema.returns().size();
  const auto output = output_device(schema, given);
  for (std::size_t k = first; k < stack->size(); ++k) {
    c10::IValue& value = (*stack)[k];
    if (output) {
      value = with_tensors(value, [&](const at::Tensor& tensor) {
        return tensor.device() == *output ? tensor : tensor.to(*output);
      });
    }
    for_each_defined(value,
                     [&](const at::Tensor& tensor) { mark(tensor, given); });
  }
}

[[maybe_unused]] const bool registered = [] {
  keep_registered(c10::Dispatcher::singleton().registerFallback(
      kPlacementKey,
      c10::KernelFunction::makeFromBoxedFunction<&place_inputs>(),
      "gpipe: placement"));
  return true;
}();

}  // namespace
}  // namespace gpipe::placement
