// A library of operators that LibTorch does not have, for tests.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/library.h>

namespace {

at::Tensor scaled(const at::Tensor& input, double p, bool /*train*/) {
  return input * p;
}

}  // namespace

TORCH_LIBRARY(gpipe_test, library) {
  library.def("scale(Tensor input, float p, bool train) -> Tensor", scaled);
  library.def("square(Tensor self) -> Tensor",
              [](const at::Tensor& self) { return self * self; });
  // Has no gradient.
  library.def("opaque_scale(Tensor input, float p, bool train) -> Tensor");
}

TORCH_LIBRARY_IMPL(gpipe_test, CPU, library) {
  library.impl("opaque_scale", scaled);
}
