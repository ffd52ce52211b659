// Tangents of forward-mode AD, which a pipeline would lose.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace gpipe::internal {

// Returns whether `tensor` is defined and has a tangent. Thread-safe.
inline bool has_tangent(const at::Tensor& tensor) {
  return tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
}

// Throws c10::NotImplementedError if `tensor` has a tangent. `what`: the
// tensor, for the error. Thread-safe.
inline void check_no_tangent(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !has_tangent(tensor), what,
      " has a tangent (forward-mode AD), and a pipeline computes none. Run the "
      "torch::nn::Sequential that the pipeline was made of, which has the same "
      "parameters; or give the pipeline the primal, "
      "std::get<0>(torch::_unpack_dual(tensor, 0))");
}

}  // namespace gpipe::internal
