// Sums the gradients of a leaf over the micro-batches of a partition.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe {

// Sums are made in the order of add(), in place as soon as this object is the
// only one that holds the sum, so that no more than one tensor per leaf lives
// between micro-batches.
class GradSum {
 public:
  explicit GradSum(std::size_t leaves = 0) : sums_(leaves) {}

  // `grad` is taken over; undefined is nothing. A leaf beyond the last so far
  // is a new one.
  void add(std::size_t leaf, at::Tensor grad);

  // The sum, undefined if nothing was added. Leaves none behind.
  at::Tensor take(std::size_t leaf);

 private:
  struct Sum {
    at::Tensor tensor;
    bool own = false;
  };
  std::vector<Sum> sums_;
};

}  // namespace gpipe
