// Calls of operators on the simulated accelerators.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace gpipe::simulated {

// Enqueues an operator on the current stream of the device of its arguments,
// and replaces the arguments on `stack` by the results. LibTorch's CPU kernel
// runs later on the device's memory. If the host needs the values, waits for
// them. Throws c10::Error if the arguments do not fit.
//
// at::native::cpu_fallback is no alternative: it runs the operator at once, on
// copies, and so would not show errors of order.
void enqueue_call(const c10::OperatorHandle& op, torch::jit::Stack* stack);

}  // namespace gpipe::simulated
