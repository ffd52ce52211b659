// The gradients of a partition's leaves, summed over micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/grad_sum.h"

namespace gpipe::internal {

// The order in which gradients of micro-batches are added.
enum class SumOrder {
  // The order in which the schedule runs the backwards. Only one sum per leaf
  // is held.
  kAsTheyCome,
  // Micro-batch 0 first, independent of the schedule, so that all schedules
  // give the same bits. Gradients that arrive early are held: up to one per
  // leaf and micro-batch, if the backwards run in reverse.
  kByMicrobatch,
};

// The gradient sums of one partition. Not thread-safe; used by the thread that
// runs the partition's backward.
class LeafSums {
 public:
  LeafSums(SumOrder order, int64_t microbatches)
      : order_(order), left_(microbatches) {}

  // Adds `grad` to the sum of `leaf`. An undefined `grad` is ignored.
  void add(int64_t microbatch, int64_t leaf, at::Tensor grad);
  // Reports that all gradients of `microbatch` have been added. Call once for
  // each micro-batch.
  void finish(int64_t microbatch);

  // Returns whether `microbatch` is the last one to be added. Then a sum is
  // complete as soon as the gradient of this micro-batch is in it.
  bool last(int64_t microbatch) const;
  // Returns whether all micro-batches have finished.
  bool complete() const { return left_ == 0; }

  // Moves out the sum of `leaf`; undefined if nothing was added.
  at::Tensor take(int64_t leaf);
  // Puts back a sum from take() that was not used.
  void put_back(int64_t leaf, at::Tensor sum);

 private:
  const SumOrder order_;
  int64_t left_;  // micro-batches that have not finished
  GradSum sums_;
  // For kByMicrobatch: the next micro-batch to add, and gradients that arrived
  // early.
  struct Early {
    bool finished = false;
    std::vector<std::pair<int64_t, at::Tensor>> grads;  // by leaf
  };
  int64_t turn_ = 0;
  std::map<int64_t, Early> early_;
};

}  // namespace gpipe::internal
