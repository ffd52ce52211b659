// A way into operators from outside: a kernel of ours that runs before theirs,
// on threads that ask for it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>

namespace gpipe {

// Dispatch keys that nothing else uses, the first one before the second.
// Operators that nobody intercepts pass them.
enum class Interceptor {
  kCell,  // what a cell of a pipeline does with random numbers and BatchNorm
  kMeta,  // what is done without memory
};

// While in scope, interceptors of this kind are called on this thread.
class InterceptScope {
 public:
  explicit InterceptScope(Interceptor kind);

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

// Puts `kernel` before the operator's own, or before those of all operators,
// for as long as the process lives. Only before main(), when no operator can
// be running: the tables that this changes are read without a lock. An operator
// has one interceptor of a kind at most. `owner` is for LibTorch's messages.
void intercept(Interceptor kind, const c10::OperatorHandle& op,
               c10::KernelFunction kernel, const std::string& owner);
void intercept_all(Interceptor kind, c10::KernelFunction kernel,
                   const std::string& owner);

// For a kernel: the operator itself, for the same arguments, in which other
// operators are intercepted too.
void run_intercepted(Interceptor kind, const c10::OperatorHandle& op,
                     c10::DispatchKeySet keys, torch::jit::Stack* stack);

// For a kernel: the operator itself, for any arguments on the stack. What it
// calls in turn is not intercepted.
void run_uncovered(Interceptor kind, const c10::OperatorHandle& op,
                   torch::jit::Stack* stack);

}  // namespace gpipe
