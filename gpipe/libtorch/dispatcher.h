// Kernels of gpipe in LibTorch's dispatcher: their registration, kernels in
// front of LibTorch's own, and the tensors among their arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/op_registration/op_registration.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include <string>

namespace gpipe::internal {

// ---- Registration of gpipe's kernels with LibTorch's dispatcher.
//
// A process may contain gpipe several times: plugins that each link it, or one
// beside a Python module. LibTorch has only one table of kernels, and a kernel
// serves the copy of gpipe that registered it. So the first copy that is loaded
// claims the dispatch keys, and the others register nothing.

// The dispatch keys of the interceptors below. LibTorch and other
// code leave them unused. kCellKey is dispatched before kMetaKey.
//
// kCellKey: random numbers, BatchNorm and casts in the cells of a pipeline.
constexpr c10::DispatchKey kCellKey =
    c10::DispatchKey::TESTING_ONLY_GenericMode;
// kMetaKey: dry runs on meta tensors, see meta_scope.h.
constexpr c10::DispatchKey kMetaKey =
    c10::DispatchKey::TESTING_ONLY_GenericWrapper;

// Keeps the kernel of `handle` registered until the process ends. It is never
// removed, because operators may still run in destructors of static objects.
// Threads: as for registering a kernel, no other thread may run operators at
// the same time.
void keep_registered(c10::RegistrationHandleRAII handle);

// Returns whether this copy of gpipe is to register `what` for `key`: if it is
// the first copy of the process that claims the key, and has not registered
// `what` yet. (If shared libraries are loaded with RTLD_GLOBAL, all call the
// functions of the first one, but each runs its own initialisers.) Thread-safe.
bool claim(c10::DispatchKey key, const std::string& what);

// Throws c10::Error if another copy of gpipe has claimed the key, or if nothing
// is registered for it: initialisers of globals are still running then.
// Thread-safe.
void check_claimed(c10::DispatchKey key);

// ---- Interceptors: kernels of gpipe that run in front of LibTorch's own
// kernels, on the threads that enable their dispatch key, or for tensors that
// have it. An operator without an interceptor falls through the key.

// Enables the interceptors of `key` on this thread while in scope. Throws as
// check_claimed() does.
class InterceptScope {
 public:
  explicit InterceptScope(c10::DispatchKey key);

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
};

// Registers `kernel` in front of the kernels of `op` (intercept) or of all
// operators (intercept_all), until the process ends. `owner`: a name for
// LibTorch's messages.
//
// They register nothing if another copy of gpipe has. An operator has at most
// one interceptor for each key. Threads: call these
// functions before main() only, while no operator can run. They change tables
// that LibTorch reads without a lock.
void intercept(c10::DispatchKey key, const c10::OperatorHandle& op,
               c10::KernelFunction kernel, const std::string& owner);
void intercept_all(c10::DispatchKey key, c10::KernelFunction kernel,
                   const std::string& owner);

// Calls the operator that an interceptor is in front of, with the arguments on
// `stack`. Operators that it calls in turn are intercepted as well. Called by
// interceptors only.
void run_intercepted(c10::DispatchKey key, const c10::OperatorHandle& op,
                     c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Calls the operator with the arguments on `stack`, which may differ from the
// interceptor's own. Operators that it calls in turn are not intercepted.
// Called by interceptors only.
void run_uncovered(c10::DispatchKey key, const c10::OperatorHandle& op,
                   torch::jit::Stack* stack);

// ---- The arguments and results of an operator that is called boxed.

// Returns whether the operator writes to the argument, or returns an argument
// that it writes to.
inline bool is_written(const c10::Argument& argument) {
  return argument.alias_info() && argument.alias_info()->isWrite();
}

// Returns whether a result is a tensor or a list.
bool returns_tensors(const c10::FunctionSchema& schema);

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
