// The loss of a micro-batch, which the last stage computes.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <utility>

#include "gpipe/runtime/cell/value.h"
#include "gpipe/weighted_loss.h"

namespace gpipe::internal {

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

}  // namespace gpipe::internal
