// Registration of gpipe's kernels with LibTorch's dispatcher.
//
// A process may contain gpipe several times: plugins that each link it, or one
// beside a Python module. LibTorch has only one table of kernels, and a kernel
// serves the copy of gpipe that registered it. So the first copy that is loaded
// claims the dispatch keys, and the others register nothing.
#pragma once

#include <ATen/core/op_registration/op_registration.h>
#include <c10/core/DispatchKey.h>

#include <string>

namespace gpipe::internal {

// The dispatch keys of the interceptors (interceptor.h). LibTorch and other
// code leave them unused. kCellKey is dispatched before kMetaKey.
constexpr c10::DispatchKey kCellKey =
    c10::DispatchKey::TESTING_ONLY_GenericMode;
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

// Throws c10::Error if another copy of gpipe has claimed the key. Thread-safe.
void check_claimed(c10::DispatchKey key);

}  // namespace gpipe::internal
