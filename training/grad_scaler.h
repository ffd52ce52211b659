// Loss scaling for training in half precision.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace gpipe {

// How the scale begins and changes.
struct GradScalerOptions {
  TORCH_ARG(double, init_scale) = 65536;
  // After growth_interval steps in a row without an infinity the scale is
  // multiplied by growth_factor (> 1); after a step with one, by backoff_factor
  // (0 to 1).
  TORCH_ARG(double, growth_factor) = 2;
  TORCH_ARG(double, backoff_factor) = 0.5;
  TORCH_ARG(int64_t, growth_interval) = 2000;
  // Of many processes: whether it is true on any of them, called by all at the
  // same point of each step. DistributedPipeline::any() is one.
  TORCH_ARG(std::function<bool(bool)>, any) = nullptr;
};

// As torch.amp.GradScaler in Python: small gradients, which half precision
// would round to zero, are kept by multiplying the loss with a large scale; the
// gradients are divided by it before the optimizer sees them, and a step in
// which one of them is infinite or no number is left out, whichever partition,
// device or process it is on. (float16 needs this; bfloat16 does not.)
//
//   gpipe::GradScaler scaler;
//   auto result = pipeline->train_step(input, target, scaler.scaled(loss),
//                                      schedule);
//   scaler.unscale_(optimizer);              // if something is to clip them
//   pipeline->clip_grad_norm_(1.0);
//   scaler.step(optimizer);
//   scaler.update();
//
// With powers of two as factors scaling changes no bit of a finite gradient
// (but of those that would be denormal).
//
// Threads: one at a time.
class GradScaler {
 public:
  // c10::ValueError for factors or an interval that cannot be.
  explicit GradScaler(GradScalerOptions options = {});

  // What losses are multiplied by now.
  double scale() const { return scale_; }

  // A loss times the scale that there is when it is computed. Results of the
  // pipeline are of the scaled loss: divide by scale() before update().
  at::Tensor scale(const at::Tensor& loss) const;
  template <typename Loss>
  auto scaled(Loss loss) const {
    return [this, loss = std::move(loss)](const auto& output,
                                          const auto& target) mutable {
      return this->scale(loss(output, target));
    };
  }

  // Divides the gradients of the optimizer's parameters by the scale, in place.
  // Once between updates for an optimizer, and before its step().
  // Errors: c10::Error if it is called again; for float16 gradients, which
  // lose what the scale has kept: keep parameters in float32, and have autocast
  // compute in float16.
  void unscale_(torch::optim::Optimizer& optimizer);

  // unscale_() if that has not been, then the optimizer's step, unless a
  // gradient of this optimizer is not finite anywhere. Whether it stepped.
  bool step(torch::optim::Optimizer& optimizer);

  // At the end of each step: a new scale. c10::Error without unscale_() or
  // step() before.
  void update();

  // What a checkpoint has to keep.
  struct State {
    double scale = 0;
    int64_t steps_since = 0;  // without infinities, since it has changed
  };
  // To be saved, and put back after resuming.
  State state() const { return {scale_, steps_since_}; }
  void set_state(const State& state);

 private:
  GradScalerOptions options_;
  double scale_;
  int64_t steps_since_ = 0;
  // Those that have been unscaled since the last update(), and whether all was
  // finite.
  std::vector<std::pair<const torch::optim::Optimizer*, bool>> seen_;
};

}  // namespace gpipe
