// Finds the shapes of an operator's results by running its CPU kernel.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace gpipe::internal {

// A kernel for the meta device for any operator that has a CPU kernel and whose
// result shapes do not depend on values. It calls the CPU kernel with zeros and
// returns meta tensors with the shapes, strides and dtypes of the results.
// Tensors that are written, mostly outputs, take memory during the call; inputs
// do not. Random numbers are drawn from a separate generator.
void run_on_zeros(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// A kernel for operators that return values, or results whose shape depends on
// values. Throws c10::NotImplementedError.
void refuse_values(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace gpipe::internal
