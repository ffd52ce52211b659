// The loss of most tests of training steps.
#pragma once

#include <ATen/core/Tensor.h>

namespace gpipe::testing {

// Returns the mean over all elements, and so over rows.
inline at::Tensor mean_square(const at::Tensor& output,
                              const at::Tensor& target) {
  return output.sub(target).pow(2).mean();
}

}  // namespace gpipe::testing
