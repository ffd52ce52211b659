// The gradients of a partition's leaves, summed over micro-batches.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

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

// One gradient sum per leaf. The addition is in place if this object alone
// holds the sum, so that only one tensor per leaf is live between
// micro-batches. Not thread-safe; used by the thread that runs the partition's
// backward.
class GradSum {
 public:
  // For sums without micro-batches, in the order of add().
  GradSum() = default;
  GradSum(SumOrder order, int64_t microbatches)
      : order_(order), left_(microbatches) {}

  // Adds `grad` to the sum of `leaf`. Takes ownership; an undefined `grad` is
  // ignored.
  void add(int64_t leaf, at::Tensor grad);

  // Adds `grad` of a micro-batch when its turn comes.
  void add(int64_t microbatch, int64_t leaf, at::Tensor grad);
  // Reports that all gradients of `microbatch` have been added. Call once for
  // each micro-batch.
  void finish(int64_t microbatch);
  // Returns whether `microbatch` is the last one to be added. Then a sum is
  // complete as soon as the gradient of this micro-batch is in it.
  bool last(int64_t microbatch) const;
  // Returns whether all micro-batches have finished.
  bool complete() const { return left_ == 0; }

  // Moves out the sum of `leaf`; undefined if nothing was added. One that is
  // not used can be added again.
  at::Tensor take(int64_t leaf);

 private:
  struct Sum {
    at::Tensor tensor;
    bool own = false;
  };
  std::vector<Sum> sums_;
  SumOrder order_ = SumOrder::kAsTheyCome;
  int64_t left_ = 0;  // micro-batches that have not finished
  // For kByMicrobatch: the next micro-batch to add, and gradients that arrived
  // early.
  struct Early {
    bool finished = false;
    std::vector<std::pair<int64_t, at::Tensor>> grads;  // by leaf
  };
  int64_t turn_ = 0;
  std::map<int64_t, Early> early_;
};

// Returns `grad` divided by `divisor`; in place if `grad` is the only holder of
// its memory.
at::Tensor divide(at::Tensor grad, double divisor);

}  // namespace gpipe::internal
