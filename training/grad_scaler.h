// Loss scaling for training in half precision.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe {

// How the scale starts and changes.
struct GradScalerOptions {
  TORCH_ARG(double, init_scale) = 65536;
  // After `growth_interval` steps in a row with finite gradients, the scale is
  // multiplied by `growth_factor` (> 1). After a step with an infinite or NaN
  // gradient it is multiplied by `backoff_factor` (between 0 and 1).
  TORCH_ARG(double, growth_factor) = 2;
  TORCH_ARG(double, backoff_factor) = 0.5;
  TORCH_ARG(int64_t, growth_interval) = 2000;
  // Returns whether its argument is true on any process. Needed if there are
  // several processes, for example DistributedPipeline::any(). All processes
  // call it at the same point of each step.
  TORCH_ARG(std::function<bool(bool)>, any) = nullptr;
};

// A loss scaler, as torch.amp.GradScaler in Python. float16 needs one, bfloat16
// does not.
//
// Half precision rounds small gradients to zero. The scaler multiplies the loss
// with a large scale to keep them, and divides the gradients by the scale
// before the optimizer sees them. If any gradient is infinite or NaN, on any
// partition, device or process, the optimizer's step is skipped.
//
//   gpipe::GradScaler scaler;
//   auto result = pipeline->train_step(input, target, scaler.scaled(loss),
//                                      schedule);
//   scaler.unscale_(optimizer);              // only needed before clipping
//   pipeline->clip_grad_norm_(1.0);
//   scaler.step(optimizer);
//   scaler.update();
//
// If the factors are powers of two, scaling changes no bit of a finite
// gradient, unless the gradient is denormal.
//
// After an exception of unscale_() or step(), or of anything between them, call
// update() before the next step: until then step() makes no step, or throws.
//
// Not thread-safe.
class GradScaler {
 public:
  // Throws c10::ValueError if `init_scale` is not positive and finite
  // as float32, `growth_interval` is not positive, `growth_factor` is not above
  // 1, or `backoff_factor` is not between 0 and 1.
  explicit GradScaler(GradScalerOptions options = {});

  // Returns the current scale, which is a float32 number, as in Python.
  double scale() const { return scale_; }

  // Returns `loss` times the current scale. scaled() returns a loss function
  // that does so. The pipeline's results then contain the scaled loss: divide
  // them by scale() before calling update().
  at::Tensor scale(const at::Tensor& loss) const;
  // Scales the sum of `loss`.
  WeightedLoss scale(WeightedLoss loss) const {
    loss.sum = scale(loss.sum);
    return loss;
  }
  template <typename Loss>
  auto scaled(Loss loss) const {
    return [this, loss = std::move(loss)](const auto& output,
                                          const auto& target) mutable {
      return this->scale(loss(output, target));
    };
  }

  // Divides the gradients of the optimizer's parameters by the scale, in place.
  // Call it at most once per optimizer between updates, and before step().
  // Throws c10::Error if it is called twice, or after step(), for an optimizer
  // between updates.
  // Throws c10::Error if a gradient is float16, since the division would lose
  // the small gradients again: keep parameters in float32 and let autocast
  // compute in float16.
  void unscale_(torch::optim::Optimizer& optimizer);

  // Calls unscale_() unless the caller has done so, then the optimizer's
  // step(). Skips the step if a gradient of this optimizer is infinite or NaN
  // on any process. Returns whether the optimizer stepped. Throws c10::Error if
  // it is called twice for an optimizer between updates, also if the first call
  // skipped the step.
  bool step(torch::optim::Optimizer& optimizer);

  // Computes the scale of the next step. Call it at the end of each step.
  // Throws c10::Error if neither unscale_() nor step() was called since the
  // last update().
  void update();

  // The part of the scaler that a run checkpoint must contain.
  struct State {
    double scale = 0;
    int64_t steps_since = 0;  // finite steps since the scale last changed
  };
  // Returns the state to save. set_state() restores it when a run resumes, and
  // throws c10::ValueError if the scale is not positive and finite as float32,
  // or if `steps_since` is negative.
  State state() const { return {scale_, steps_since_}; }
  void set_state(const State& state);

 private:
  GradScalerOptions options_;
  float scale_;
  int64_t steps_since_ = 0;
  // An optimizer whose gradients have been unscaled since the last update().
  struct Unscaled {
    const torch::optim::Optimizer* optimizer;
    bool finite;           // all its gradients
    bool stepped = false;  // whether step() was called
  };
  // Returns the entry of `optimizer`, or null.
  Unscaled* find(const torch::optim::Optimizer& optimizer);
  std::vector<Unscaled> unscaled_;
};

}  // namespace gpipe
