// The gradients of a partition's leaves, summed over micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "gpipe/runtime/grad_sum.h"

namespace gpipe {

enum class SumOrder {
  // In the order in which the schedule runs the backwards: one sum per leaf
  // is all that is held.
  kAsTheyCome,
  // From micro-batch 0 on, whatever the schedule: the same bits for all of
  // them. What comes before its turn is held, up to one gradient per leaf and
  // micro-batch (if the backwards run in reverse).
  kByMicrobatch,
};

struct LeafGrad {
  int64_t leaf = 0;
  at::Tensor grad;  // undefined is nothing
};

// Threads: those of the partition.
class LeafSums {
 public:
  explicit LeafSums(SumOrder order) : order_(order) {}

  // Of all leaves that the micro-batch has a gradient for; once for each
  // micro-batch, also if there is none.
  void add(int64_t microbatch, std::vector<LeafGrad> grads);

  // The sum, undefined if nothing was added. Leaves none behind.
  at::Tensor take(int64_t leaf);

 private:
  void add_now(std::vector<LeafGrad> grads);

  const SumOrder order_;
  GradSum sums_;
  int64_t next_ = 0;  // micro-batch to be added
  std::map<int64_t, std::vector<LeafGrad>> early_;
};

}  // namespace gpipe
