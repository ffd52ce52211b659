// The sums of leaves' gradients over the micro-batches of a partition.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe::internal {

// One gradient sum per leaf. Gradients are added in the order of add(). The
// addition is in place if this object alone holds the sum, so that only one
// tensor per leaf is live between micro-batches. Not thread-safe.
class GradSum {
 public:
  explicit GradSum(std::size_t leaves = 0) : sums_(leaves) {}

  // Adds `grad` to the sum of `leaf`. Takes ownership; an undefined `grad` is
  // ignored. A `leaf` that is out of range adds new leaves.
  void add(std::size_t leaf, at::Tensor grad);

  // Moves out the sum of `leaf`; undefined if nothing was added.
  at::Tensor take(std::size_t leaf);

 private:
  struct Sum {
    at::Tensor tensor;
    bool own = false;
  };
  std::vector<Sum> sums_;
};

// Returns `grad` divided by `divisor`; in place if `grad` is the only holder of
// its memory.
at::Tensor divide(at::Tensor grad, double divisor);

}  // namespace gpipe::internal
