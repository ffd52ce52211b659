// Waits for autograd's own threads. Each accelerator has one.
#pragma once

#include <torch/types.h>

namespace gpipe::testing {

// Blocks until autograd's thread of `device` has released everything of earlier
// backwards. The thread first notifies the caller of a backward, and releases
// the last gradient later, but before its next work. So this function gives it
// work without any bytes.
inline void settle_engine(const torch::Device& device) {
  const auto nothing = torch::dtype(torch::kDouble).device(device);
  const torch::Tensor x = torch::empty({0}, nothing).requires_grad_();
  (x * 1).backward(torch::empty({0}, nothing));
}

}  // namespace gpipe::testing
