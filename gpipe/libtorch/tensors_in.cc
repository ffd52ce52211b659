#include "gpipe/libtorch/tensors_in.h"

#include <ATen/core/List.h>

namespace gpipe::internal {

c10::IValue with_tensors(
    const c10::IValue& value,
    c10::function_ref<at::Tensor(const at::Tensor&)> replace) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return tensor.defined() ? replace(tensor) : tensor;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& each : value.toTensorVector()) {
      list.push_back(each.defined() ? replace(each) : each);
    }
    return list;
  }
  if (value.isList() && value.toListRef().size() > 0) {
    c10::impl::GenericList list(value.toList().elementType());
    for (const c10::IValue& each : value.toListRef()) {
      list.push_back(with_tensors(each, replace));
    }
    return list;
  }
  return value;
}

void for_each_tensor(const c10::IValue& value,
                     c10::function_ref<void(const at::Tensor&)> visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& each : value.toListRef()) {
      // All elements of such a list are numbers.
      if (each.isInt() || each.isDouble() || each.isBool()) return;
      for_each_tensor(each, visit);
    }
  }
}

}  // namespace gpipe::internal
