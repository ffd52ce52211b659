// Memory of the host for copies of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace gpipe::internal {

// Returns a new dense CPU tensor with the sizes and the dtype of `tensor`,
// without values. It is pinned for a tensor on CUDA or XPU, for which LibTorch
// has pinned memory: a copy into it is several times as fast. Throws c10::Error
// if the host has no memory. Thread-safe.
inline at::Tensor host_memory_for(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(),
                   at::TensorOptions(tensor.scalar_type())
                       .pinned_memory(tensor.is_cuda() || tensor.is_xpu()));
}

}  // namespace gpipe::internal
