// The loss of a micro-batch, which the last stage computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe {

// Names with their values, such as {"correct", 17}. Each value is a tensor with
// one element.
using Metrics = std::vector<std::pair<std::string, at::Tensor>>;

// Public: the loss of a micro-batch as a sum, and what the sum is divided by.
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
  // differentiated; bool counts as int64.
  Metrics metrics = {};
};

namespace internal {

// A loss function on Values. Its result has no weight if the loss is a mean
// over the rows of the micro-batch.
class LossFunction {
 public:
  LossFunction() = default;
  // `function(output, target)` returns an at::Tensor or a WeightedLoss.
  template <typename Function,
            typename Result = std::invoke_result_t<Function&, Value, Value>>
  /* implicit */ LossFunction(Function function)
      : weighted_(std::is_same_v<Result, WeightedLoss>) {
    if constexpr (std::is_same_v<Result, WeightedLoss>) {
      function_ = std::move(function);
    } else {
      function_ = [function = std::move(function)](
                      Value output, Value target) mutable -> WeightedLoss {
        return {function(std::move(output), std::move(target)), at::Tensor()};
      };
    }
  }

  bool weighted() const { return weighted_; }
  WeightedLoss operator()(Value output, Value target) const {
    return function_(std::move(output), std::move(target));
  }

 private:
  std::function<WeightedLoss(Value, Value)> function_;
  bool weighted_ = false;
};

// The loss of one micro-batch. The last stage's cell runs it after its last
// layer and outputs the loss.
struct LossHead {
  const LossFunction* function = nullptr;
  Value target;
  bool keep_output = false;

  // Set by the first run of the cell.
  Value output;       // without graph; set if keep_output
  at::Tensor weight;  // without graph; undefined if the loss is a mean
  Metrics metrics;    // without graph
};

}  // namespace internal
}  // namespace gpipe
