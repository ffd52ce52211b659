// Kernels that stay registered with LibTorch's dispatcher until the process
// ends.
#pragma once

#include <ATen/core/op_registration/op_registration.h>

namespace gpipe::internal {

// Keeps the kernel of `handle` registered until the process ends. It is never
// removed, because operators may still run in destructors of static objects.
// Threads: as for registering a kernel, no other thread may run operators at
// the same time.
void keep_registered(c10::RegistrationHandleRAII handle);

}  // namespace gpipe::internal
