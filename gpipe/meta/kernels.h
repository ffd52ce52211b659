// Kernels for the meta device that LibTorch has only in Python.
#pragma once

namespace gpipe::internal {

// Does nothing, but makes the linker include the kernels in the program. They
// are registered before main(), for operators that have no meta kernel in
// LibTorch.
void link_meta_kernels();

}  // namespace gpipe::internal
