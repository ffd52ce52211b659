// Interceptors: kernels of gpipe that run in front of LibTorch's own kernels,
// on the threads that enable them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>

namespace gpipe::internal {

// The kinds of interceptors, each with a dispatch key. An operator without an
// interceptor falls through both keys.
enum class Interceptor {
  kCell,  // random numbers and BatchNorm in the cells of a pipeline
  kMeta,  // dry runs on meta tensors, see gpipe/meta
};

// Throws c10::Error if the interceptors of this copy of gpipe do not work,
// since another copy is loaded (registration.h).
void check_interceptors(Interceptor kind);

// Enables the interceptors of one kind on this thread while in scope. Throws as
// check_interceptors() does.
class InterceptScope {
 public:
  explicit InterceptScope(Interceptor kind);

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

// Registers `kernel` in front of the kernels of `op` (intercept) or of all
// operators (intercept_all), until the process ends. `owner`: a name for
// LibTorch's messages.
//
// They register nothing if another copy of gpipe has. An operator has at most
// one interceptor of each kind. Threads: call these
// functions before main() only, while no operator can run. They change tables
// that LibTorch reads without a lock.
void intercept(Interceptor kind, const c10::OperatorHandle& op,
               c10::KernelFunction kernel, const std::string& owner);
void intercept_all(Interceptor kind, c10::KernelFunction kernel,
                   const std::string& owner);

// Calls the operator that an interceptor is in front of, with the arguments on
// `stack`. Operators that it calls in turn are intercepted as well. Called by
// interceptors only.
void run_intercepted(Interceptor kind, const c10::OperatorHandle& op,
                     c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Calls the operator with the arguments on `stack`, which may differ from the
// interceptor's own. Operators that it calls in turn are not intercepted.
// Called by interceptors only.
void run_uncovered(Interceptor kind, const c10::OperatorHandle& op,
                   torch::jit::Stack* stack);

}  // namespace gpipe::internal
