// The outcome of an operator on the meta device, learned from its CPU kernel.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace gpipe {

// A kernel for the meta device that serves any operator with a kernel for the
// CPU, unless what it returns depends on values: calls that one with zeros and
// returns tensors of the shapes, strides and dtypes that come out. What is
// written, outputs first of all, is in memory while it runs; inputs are not.
// Numbers at random are drawn from a generator of its own.
void run_on_zeros(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace gpipe
