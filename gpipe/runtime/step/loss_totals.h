// The loss of a step, added up over micro-batches and replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <vector>

#include "gpipe/runtime/cell/cell.h"
#include "gpipe/train.h"

namespace gpipe::internal {

// Sums over the micro-batches of one replica, or over several replicas. The
// tensors are scalars without graph.
struct LossTotals {
  // Whether the loss function returns a WeightedLoss.
  bool weighted = false;
  // The sum of the losses; undefined if there are none. Losses that are means
  // are weighted by their share of the rows.
  at::Tensor sum;
  // The sum of WeightedLoss::weight. For losses that are means, the sum of
  // their shares, which is 1, or 0 if there are no rows.
  double weight = 0;
  Metrics metrics;
  // The losses by micro-batch, if they were read.
  std::vector<double> losses;

  // Adds the sums of another replica. Throws c10::ValueError if the loss is
  // weighted in one and a mean in the other.
  void add(const LossTotals& other);

  // Throws c10::ValueError if the loss cannot be divided by `weight`.
  void check() const;

  // Sets the loss, the weight and the metrics of `result`. If the loss of
  // `result` is defined, its device is kept.
  void write_to(StepResult& result) const;
};

// Returns the totals of losses that are weighted. `losses`: by micro-batch.
// Waits for the device once, to read the weights. On the meta device, where
// weights have no values, the weight is 1.
// `reads`: whether to read all numbers in the same copy. The tensors of the
// totals are on the host then.
LossTotals add_up_weighted(const std::vector<at::Tensor>& losses,
                           const std::deque<LossHead>& heads, bool reads);

// Returns the totals of losses that are means. `shares`: of the rows, by
// micro-batch. `reads`: as above; otherwise nothing is waited for.
LossTotals add_up_means(const std::vector<at::Tensor>& losses,
                        const std::vector<double>& shares, bool reads);

}  // namespace gpipe::internal
