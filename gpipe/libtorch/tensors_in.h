// The tensors among the arguments of an operator that is called boxed.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

namespace gpipe::internal {

// Returns `value` with each defined tensor in it replaced by `replace(tensor)`.
// Lists are searched too, also nested ones.
c10::IValue with_tensors(
    const c10::IValue& value,
    c10::function_ref<at::Tensor(const at::Tensor&)> replace);

// Calls `visit` with each defined tensor in `value`. Lists are searched too,
// also nested ones.
void for_each_tensor(const c10::IValue& value,
                     c10::function_ref<void(const at::Tensor&)> visit);

}  // namespace gpipe::internal
