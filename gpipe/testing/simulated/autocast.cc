// Autocast on the simulated accelerators, with CUDA's lists of operators.
// LibTorch registers no autocast for a backend that it does not support.
#include <ATen/Operators.h>
#include <ATen/autocast_mode.h>
#include <torch/library.h>

TORCH_LIBRARY_IMPL(_, AutocastHPU, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

// LibTorch's macros use the name `m`.
TORCH_LIBRARY_IMPL(aten, AutocastHPU, m) {
#define LOWER(...) KERNEL(c10::kHPU, __VA_ARGS__, lower_precision_fp)
#define FLOAT(...) KERNEL(c10::kHPU, __VA_ARGS__, fp32)
  AT_FORALL_LOWER_PRECISION_FP(LOWER)
  AT_FORALL_FP32(FLOAT)
#undef LOWER
#undef FLOAT
}
