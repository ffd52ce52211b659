// Kernels for the meta device that LibTorch has in Python only.
#pragma once

namespace gpipe {

// Whoever calls this is linked with the kernels; they are registered before
// main(), where LibTorch has none of its own.
void link_meta_kernels();

}  // namespace gpipe
