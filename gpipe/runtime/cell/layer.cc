#include "gpipe/runtime/cell/layer.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/nn/cloneable.h>

#include <optional>

// Module has no function that replaces a registered tensor. All classes of this
// template are its friends.
template <>
class torch::nn::Cloneable<gpipe::internal::RegistryGuard> {
 public:
  static auto& parameters(Module& module) { return module.parameters_; }
  static auto& buffers(Module& module) { return module.buffers_; }
};

namespace gpipe::internal {
namespace {

using torch::nn::AnyModule;
using torch::nn::AnyValue;

// Calls `use` with each tuple size from 1 up as an integral constant, until
// `use` returns true.
template <typename Use, std::size_t... N>
void for_tuple_sizes(Use&& use, std::index_sequence<N...>) {
  (void)(use(std::integral_constant<std::size_t, N + 1>()) || ...);
}

Value to_value(AnyValue output, const AnyModule& layer) {
  if (auto* tensor = output.try_get<at::Tensor>()) {
    return Value::wrap(std::move(*tensor));
  }
  if (auto* tensors = output.try_get<std::vector<at::Tensor>>()) {
    return Value::wrap(std::move(*tensors));
  }
  std::optional<Value> value;
  for_tuple_sizes(
      [&](auto n) {
        auto* tuple = output.try_get<detail::TensorTuple<n>>();
        if (tuple) value = Value::wrap(std::move(*tuple));
        return tuple != nullptr;
      },
      std::make_index_sequence<kMaxTupleSize>());
  TORCH_CHECK_TYPE(value.has_value(),
                   "a layer must return a torch::Tensor, a "
                   "std::vector<torch::Tensor> or a std::tuple of 1 to ",
                   kMaxTupleSize, " torch::Tensor, but ", layer.ptr()->name(),
                   " returned ", c10::demangle(output.type_info().name()),
                   "; if only its first tensor is needed, use "
                   "gpipe::first_output(layer) (gpipe/first_output.h) as the "
                   "layer");
  return std::move(*value);
}

}  // namespace

AnyValue to_any_value(Value value) {
  switch (value.kind()) {
    case Value::Kind::kTensor:
      return AnyValue(std::move(value.tensors()[0]));
    case Value::Kind::kVector:
      return AnyValue(std::move(value.tensors()));
    case Value::Kind::kTuple:
      break;
  }
  const std::size_t size = value.tensors().size();
  std::optional<AnyValue> result;
  for_tuple_sizes(
      [&](auto n) {
        if (size != n) return false;
        result.emplace(std::move(value).unwrap<detail::TensorTuple<n>>());
        return true;
      },
      std::make_index_sequence<kMaxTupleSize>());
  return std::move(*result);
}

Value call_layer(AnyModule& layer, Value input) {
  return to_value(layer.any_forward(to_any_value(std::move(input))), layer);
}

Value call_layer_on_meta(AnyModule& layer, Value input, std::size_t index,
                         const std::string& name) {
  try {
    return call_layer(layer, std::move(input));
  } catch (c10::Error& error) {
    error.add_context(
        c10::str("in layer ", index, " ('", name, "', ", layer.ptr()->name(),
                 "), which ran on the meta device, where tensors have shapes "
                 "but no values. If the layer needs values, cut the model by "
                 "balance_by_time(), or choose the balance yourself"));
    throw;
  }
}

namespace {

using Registered = torch::nn::Cloneable<RegistryGuard>;

// No operator writes to elements that share memory, as those of an expanded
// buffer do. Sparse tensors have no strides to tell.
bool is_writable(const at::Tensor& tensor) {
  return tensor.layout() != at::kStrided ||
         at::has_internal_overlap(tensor) != at::MemOverlap::Yes;
}

}  // namespace

RegistryGuard::RegistryGuard(const torch::nn::Module& module, bool values) {
  for (const auto& each : module.modules()) {
    registries_.push_back({each, each->is_training(),
                           Registered::parameters(*each),
                           Registered::buffers(*each)});
    add(registries_.back().parameters, /*values=*/false);
    add(registries_.back().buffers, values);
  }
}

void RegistryGuard::add(const Entries& entries, bool values) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const auto& entry : entries) {
    const at::Tensor& tensor = entry.value();
    if (!tensor.defined()) continue;
    memory_.push_back(
        {tensor, tensor.variable_data(),
         values && is_writable(tensor) ? tensor.clone() : at::Tensor()});
  }
}

RegistryGuard::~RegistryGuard() {
  try {
    restore();
  } catch (...) {
    // A device has failed, or train() of a layer has thrown. The error that
    // ended the scope is more useful.
  }
}

void RegistryGuard::restore() const {
  // train() also sets the submodules, which come after their parents. A layer's
  // own train() may change tensors, so they are restored after it.
  for (const Registry& each : registries_) {
    if (each.module->is_training() != each.training) {
      each.module->train(each.training);
    }
  }
  const auto put_back = [](const Entries& from, Entries& to) {
    for (const auto& entry : from) {
      at::Tensor* const now = to.find(entry.key());
      (now ? *now : to.insert(entry.key(), at::Tensor())) = entry.value();
    }
  };
  for (const Registry& each : registries_) {
    put_back(each.parameters, Registered::parameters(*each.module));
    put_back(each.buffers, Registered::buffers(*each.module));
  }
  // Copies below autograd raise no versions, and may write inference tensors.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Memory& each : memory_) each.tensor.set_data(each.data);
  for (const Memory& each : memory_) {
    if (each.value.defined()) each.tensor.copy_(each.value);
  }
}

}  // namespace gpipe::internal
