// Kernels that stay with LibTorch's dispatcher until the process ends.
#pragma once

#include <ATen/core/op_registration/op_registration.h>

namespace gpipe {

// The kernel that `handle` stands for is never taken back: operators may run as
// long as the process does, those of static objects included. Threads: as
// registering itself, no other may run operators meanwhile.
void keep_registered(c10::RegistrationHandleRAII handle);

}  // namespace gpipe
