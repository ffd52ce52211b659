// Autograd's own threads, of which an accelerator has one.
#pragma once

#include <torch/types.h>

namespace gpipe::testing {

// Returns when autograd's thread of `device` holds nothing any more of the
// backwards before. It tells whoever waits for a backward first, and lets go of
// the last gradient that it took afterwards; but before its next piece of work,
// so it is given one, without a byte.
inline void settle_engine(const torch::Device& device) {
  const auto nothing = torch::dtype(torch::kDouble).device(device);
  const torch::Tensor x = torch::empty({0}, nothing).requires_grad_();
  (x * 1).backward(torch::empty({0}, nothing));
}

}  // namespace gpipe::testing
