// Brings the inputs of an operator together if one of them is tagged. See the
// rules in gpipe/placement.h.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/op_registration/op_registration.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "gpipe/libtorch/dispatcher.h"
#include "gpipe/placement/place.h"

namespace gpipe::placement {
namespace {

using internal::is_written;

// Returns whether an operator may have arguments on several devices, or handles
// devices itself.
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
  return name.starts_with("aten::_foreach_") ||
         name.starts_with("aten::_fused_") ||
         name.starts_with("aten::_amp_foreach_") || names->contains(name);
}

// Returns whether LibTorch needs the argument on the CPU, wherever the others
// are.
bool stays_on_cpu(const std::string& argument) {
  return argument == "batch_sizes" || argument == "lengths" ||
         argument == "tensor_indices_or_sections";
}

// Returns whether LibTorch accepts the tensor beside tensors on any device.
bool is_cpu_number(const at::Tensor& tensor) {
  return tensor.dim() == 0 && tensor.device().is_cpu();
}

// Collects devices and whether they are all the same.
struct Agreement {
  std::optional<c10::Device> device;
  bool mixed = false;

  void add(c10::Device other) {
    if (!device) device = other;
    mixed = mixed || *device != other;
  }
};

// The devices of tagged arguments and the innermost place that contains their
// places.
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

// The arguments of an operator, sorted by their tags.
struct Arguments {
  Origin weights, data;
  bool others = false;   // some arguments are untagged
  bool numbers = false;  // some untagged arguments may stay on the CPU
  bool direct = true;    // all weights are direct, see Tag::direct
  bool gradients = false;
  Agreement devices;
  c10::SmallVector<at::Tensor, 4> unmarked;

  void add(const at::Tensor& tensor, bool is_written) {
    const Tag* const tag = Tag::of(tensor);
    PlacePtr place = tag ? active_place(tag->place) : nullptr;
    if (!place) {
      unmarked.push_back(tensor);
      // A scalar that LibTorch has wrapped in a tensor is not an input.
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

  // Returns the place that the result belongs to.
  const PlacePtr& place() const {
    return weights.any ? weights.place : data.place;
  }
};

// Returns the device that the operator must run on. Returns nullopt if its
// inputs can stay where they are, or if LibTorch shall report the error.
std::optional<c10::Device> meeting_place(const c10::FunctionSchema& schema,
                                         c10::ArrayRef<c10::IValue> values,
                                         const Arguments& given) {
  Agreement counted;
  std::optional<c10::Device> written;
  for (std::size_t k = 0; k < values.size(); ++k) {
    const c10::Argument& argument = schema.arguments()[k];
    if (stays_on_cpu(argument.name())) continue;
    internal::for_each_tensor(values[k], [&](const at::Tensor& tensor) {
      if (is_written(argument)) {
        if (!written) written = tensor.device();
      } else if (is_cpu_number(tensor) && !Tag::of(tensor) &&
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
  // All tagged inputs are data. A value that has left its module counts as
  // being on that module's output device.
  Agreement expected;
  for (const c10::IValue& value : values) {
    internal::for_each_tensor(value, [&](const at::Tensor& tensor) {
      const Tag* const tag = Tag::of(tensor);
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

// Moves the inputs on the stack to `device`.
void bring(const c10::FunctionSchema& schema, c10::Device device,
           bool also_numbers, torch::jit::Stack& stack) {
  const std::size_t count = schema.arguments().size();
  for (std::size_t k = 0; k < count; ++k) {
    const c10::Argument& argument = schema.arguments()[k];
    if (is_written(argument) || stays_on_cpu(argument.name())) continue;
    c10::IValue& value = stack[stack.size() - count + k];
    if (!value.isTensor() && !value.isList()) continue;
    value = internal::with_tensors(value, [&](const at::Tensor& tensor) {
      if (tensor.device() == device) return tensor;
      if (is_cpu_number(tensor) && !Tag::of(tensor) && !also_numbers) {
        return tensor;
      }
      return tensor.to(device);
    });
  }
}

// Returns whether the thread runs the backward of one of LibTorch's operators.
// There a weight is an operand of a gradient and makes no output of its module.
bool in_backward() {
  const auto node = torch::autograd::get_current_node();
  if (!node) return false;
  // A forward that is run again in the backward of a custom Function is not
  // one.
  return !c10::GradMode::is_enabled() ||
         dynamic_cast<torch::autograd::TraceableFunction*>(node.get());
}

// Returns the output device of the module that owns the weights, if this
// operator makes that module's output.
std::optional<c10::Device> output_device(const c10::FunctionSchema& schema,
                                         const Arguments& given) {
  const PlacePtr& place = given.weights.place;
  // An optimizer combines gradients with weights, which makes no output.
  if (!place || !given.direct || !place->output || given.only_weights() ||
      given.gradients || takes_any_devices(schema.name())) {
    return std::nullopt;
  }
  const auto& arguments = schema.arguments();
  if (std::ranges::any_of(arguments, is_written) || in_backward()) {
    return std::nullopt;
  }
  return place->output;
}

// Tags a result of the operator.
void mark(const at::Tensor& tensor, const Arguments& given) {
  const bool only_weights = given.only_weights();
  if (const Tag* const tag = Tag::of(tensor)) {
    const PlacePtr place = active_place(tag->place);
    // A weight stays a weight, even if data are written to it.
    if (place && (tag->kind == Tag::Kind::kWeight || place == given.place())) {
      return;
    }
  } else if (std::ranges::any_of(given.unmarked, [&](const at::Tensor& each) {
               return each.is_same(tensor);
             })) {
    return;  // an argument that was written to
  }
  const auto kind = only_weights                       ? Tag::Kind::kWeight
                    : given.gradients || in_backward() ? Tag::Kind::kGradient
                                                       : Tag::Kind::kData;
  Tag::set(tensor, c10::make_intrusive<Tag>(given.place(), kind,
                                            only_weights && given.direct));
}

// The kernel of the dispatch key: places the inputs, runs the operator and tags
// its results.
void place_inputs(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  // Operators that this operator calls find all inputs on one device.
  const c10::impl::ExcludeDispatchKeyGuard done(kPlacementKey);
  const c10::FunctionSchema& schema = op.schema();

  Arguments given;
  const auto values = torch::jit::last(*stack, schema.arguments().size());
  for (std::size_t k = 0; k < values.size(); ++k) {
    internal::for_each_tensor(values[k], [&](const at::Tensor& tensor) {
      given.add(tensor, is_written(schema.arguments()[k]));
    });
  }

  // Beside weights, CPU numbers are moved, too: an index must be on their
  // device.
  const auto device =
      given.devices.mixed || (given.numbers && given.weights.any)
          ? meeting_place(schema, values, given)
          : std::nullopt;
  if (device) {
    bring(schema, *device, given.weights.any, *stack);
    op.callBoxed(stack);  // the dispatch keys of the arguments have changed
  } else {
    internal::run_intercepted(kPlacementKey, op, keys, stack);
  }
  if (!given.place()) return;

  const std::size_t first = stack->size() - schema.returns().size();
  const auto output = output_device(schema, given);
  for (std::size_t k = first; k < stack->size(); ++k) {
    c10::IValue& value = (*stack)[k];
    if (output) {
      value = internal::with_tensors(value, [&](const at::Tensor& tensor) {
        return tensor.device() == *output ? tensor : tensor.to(*output);
      });
    }
    internal::for_each_tensor(
        value, [&](const at::Tensor& tensor) { mark(tensor, given); });
  }
}

[[maybe_unused]] const bool registered = [] {
  internal::intercept_all(
      kPlacementKey,
      c10::KernelFunction::makeFromBoxedFunction<&place_inputs>(),
      "gpipe: placement");
  return true;
}();

}  // namespace
}  // namespace gpipe::placement
