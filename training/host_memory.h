// Memory of the host for copies of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace gpipe::internal {

// Returns a new dense CPU tensor with the sizes and the dtype of `tensor`,
// without values. A copy from CUDA is several times as fast into pinned memory,
// so that it is pinned for a CUDA tensor. Throws c10::Error if the host has no
// memory. Thread-safe.
inline at::Tensor host_memory_for(const at::Tensor& tensor) {
  return at::empty(
      tensor.sizes(),
      at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda()));
}

}  // namespace gpipe::internal
