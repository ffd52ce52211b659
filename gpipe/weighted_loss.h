// A loss that is a sum with a weight, for train_step().
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace gpipe {

// Names with their values, such as {"correct", 17}. Each value is a tensor with
// one element.
using Metrics = std::vector<std::pair<std::string, at::Tensor>>;

// The loss of a micro-batch as a sum, and what the sum is divided by.
//
// A loss function that returns a WeightedLoss makes train_step() differentiate
// (sum of all `sum`) / (sum of all `weight`). Both sums are over all
// micro-batches and replicas. So micro-batches with unequal numbers of tokens
// count as in one large batch, which a mean per micro-batch does not give.
//
//   [](torch::Tensor output, torch::Tensor target) {
//     namespace F = torch::nn::functional;
//     gpipe::WeightedLoss loss;
//     loss.sum = F::cross_entropy(
//         output, target,
//         F::CrossEntropyFuncOptions().ignore_index(-100).reduction(
//             torch::kSum));
//     loss.weight = (target != -100).sum();
//     return loss;
//   }
struct WeightedLoss {
  // A floating-point scalar with a graph: the sum over the tokens, rows or
  // pixels of the micro-batch.
  at::Tensor sum;
  // A scalar of any dtype: the number of these tokens, rows or pixels. A
  // micro-batch may have the weight 0; the total of a step must be positive.
  // Not differentiated.
  at::Tensor weight;
  // Scalars that are added up over micro-batches and replicas. Not
  // differentiated; integers and bool count as int64.
  Metrics metrics = {};
};

}  // namespace gpipe
