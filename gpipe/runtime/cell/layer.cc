#include "gpipe/runtime/cell/layer.h"

#include <optional>
#include <tuple>

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

}  // namespace gpipe::internal
