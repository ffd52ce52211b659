// The gradients of a partition's leaves, summed over micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
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

// Threads: those of the partition.
class LeafSums {
 public:
  LeafSums(SumOrder order, int64_t microbatches)
      : order_(order), left_(microbatches) {}

  // Undefined is nothing.
  void add(int64_t microbatch, int64_t leaf, at::Tensor grad);
  // All of the micro-batch have been added; for every one of them.
  void finish(int64_t microbatch);

  // Whether no other micro-batch is to be added behind this one, so that a sum
  // is complete as soon as all of this one is in it.
  bool last(int64_t microbatch) const;
  // Whether all micro-batches have finished.
  bool complete() const { return left_ == 0; }

  // The sum, undefined if nothing was added. Leaves none behind.
  at::Tensor take(int64_t leaf);
  // What was taken and is not wanted.
  void put_back(int64_t leaf, at::Tensor sum);

 private:
  const SumOrder order_;
  int64_t left_;  // micro-batches that have not finished
  GradSum sums_;
  // Of kByMicrobatch: whose turn it is, and what came before its own.
  struct Early {
    bool finished = false;
    std::vector<std::pair<int64_t, at::Tensor>> grads;  // by leaf
  };
  int64_t turn_ = 0;
  std::map<int64_t, Early> early_;
};

}  // namespace gpipe
