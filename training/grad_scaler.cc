#include "training/grad_scaler.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

namespace gpipe {
namespace {

// Returns whether the factors can change the value. A scale that is infinite
// or 0 would stay so, and no step would run.
bool is_scale(float value) { return std::isfinite(value) && value > 0; }

// Returns the values of a gradient. The caller changes them in place.
at::Tensor values_of(at::Tensor& grad) {
  if (!grad.is_sparse()) return grad;
  // Adds up values of equal indices first. Otherwise two finite numbers could
  // add up to an infinity after the check.
  grad = grad.coalesce();
  return grad._values();
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options)
    : options_(std::move(options)),
      scale_(static_cast<float>(options_.init_scale())) {
  TORCH_CHECK_VALUE(is_scale(scale_),
                    "init_scale must be positive and finite (init_scale: ",
                    options_.init_scale(), ")");
  TORCH_CHECK_VALUE(options_.growth_factor() > 1,
                    "growth_factor must be above 1 (growth_factor: ",
                    options_.growth_factor(), ")");
  TORCH_CHECK_VALUE(
      options_.backoff_factor() > 0 && options_.backoff_factor() < 1,
      "backoff_factor must be between 0 and 1 (backoff_factor: ",
      options_.backoff_factor(), ")");
  TORCH_CHECK_VALUE(options_.growth_interval() > 0,
                    "growth_interval must be positive (growth_interval: ",
                    options_.growth_interval(), ")");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  // As in Python, whose scale is a float32 tensor.
  return loss.to(at::promote_types(loss.scalar_type(), at::kFloat)).mul(scale_);
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(!find(optimizer),
              "the gradients of this optimizer are already unscaled; call "
              "update() before unscaling them again");
  const c10::AutoGradMode no_graph(false);
  // The operator requires tensors of one device and dtype.
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>>
      groups;
  // Module::parameters() lists a shared tensor once per registration.
  std::set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      at::Tensor& grad = parameter.mutable_grad();
      if (!grad.defined()) continue;
      TORCH_CHECK(grad.scalar_type() != at::kHalf, "a gradient of sizes ",
                  grad.sizes(),
                  " is float16, so unscaling would lose small gradients; keep "
                  "the parameters in float32");
      groups[{grad.device().str(), grad.scalar_type()}].push_back(
          values_of(grad));
    }
  }
  // First, since an exception below may leave some gradients divided: then the
  // optimizer makes no step before the next update().
  unscaled_.push_back({&optimizer, /*finite=*/false});
  std::vector<at::Tensor> found;
  for (auto& [key, grads] : groups) {
    const auto options =
        at::TensorOptions(grads.front().device()).dtype(at::kFloat);
    found.push_back(at::zeros({1}, options));
    at::_amp_foreach_non_finite_check_and_unscale_(
        grads, found.back(),
        at::full({1}, 1 / scale(), options.dtype(at::kDouble)).to(at::kFloat));
  }
  bool infinite = false;
  for (const at::Tensor& each : found) {
    infinite = infinite || each.item<float>() != 0;
  }
  if (options_.any()) infinite = options_.any()(infinite);
  unscaled_.back().finite = !infinite;
}

GradScaler::Unscaled* GradScaler::find(
    const torch::optim::Optimizer& optimizer) {
  for (Unscaled& each : unscaled_) {
    if (each.optimizer == &optimizer) return &each;
  }
  return nullptr;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!find(optimizer)) unscale_(optimizer);
  Unscaled& entry = *find(optimizer);
  TORCH_CHECK(!entry.stepped,
              "this optimizer has already made its step; call update() before "
              "its next step");
  entry.stepped = true;  // also if the step throws
  if (entry.finite) optimizer.step();
  return entry.finite;
}

void GradScaler::update() {
  TORCH_CHECK(!unscaled_.empty(),
              "nothing has been unscaled since the last update(); call "
              "unscale_() or step() before it");
  const bool finite = std::all_of(unscaled_.begin(), unscaled_.end(),
                                  [](const auto& each) { return each.finite; });
  unscaled_.clear();
  if (finite && ++steps_since_ < options_.growth_interval()) return;
  steps_since_ = 0;
  const auto next =
      static_cast<float>(scale() * (finite ? options_.growth_factor()
                                           : options_.backoff_factor()));
  if (is_scale(next)) scale_ = next;
}

void GradScaler::set_state(const State& state) {
  const auto scale = static_cast<float>(state.scale);
  TORCH_CHECK_VALUE(
      is_scale(scale) && state.steps_since >= 0,
      "the scale must be positive and finite, and steps_since at least 0 "
      "(scale: ",
      state.scale, ", steps_since: ", state.steps_since, ")");
  scale_ = scale;
  steps_since_ = state.steps_since;
}

}  // namespace gpipe
