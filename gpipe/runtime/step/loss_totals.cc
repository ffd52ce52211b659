#include "gpipe/runtime/step/loss_totals.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace gpipe::internal {
namespace {

// Adds `value` to `sum`, which may be undefined.
void add_to(at::Tensor& sum, const at::Tensor& value) {
  sum = sum.defined() ? sum + value : value;
}

void add_to(Metrics& metrics, const std::string& name, at::Tensor value) {
  if (value.scalar_type() == at::kBool) value = value.to(at::kLong);
  value = value.reshape({});
  const auto found =
      std::find_if(metrics.begin(), metrics.end(),
                   [&](const auto& each) { return each.first == name; });
  if (found == metrics.end()) {
    metrics.emplace_back(name, std::move(value));
  } else {
    add_to(found->second, value);
  }
}

// Returns the sum of the weights, micro-batch 0 first.
double total_weight(const std::deque<LossHead>& heads) {
  std::vector<at::Tensor> weights;
  for (const LossHead& head : heads) {
    if (head.weight.is_meta()) return 1;
    weights.push_back(head.weight.reshape({}));
  }
  // One copy to the host for all of them.
  const at::Tensor on_host = at::stack(weights).to(at::kCPU).to(at::kDouble);
  double total = 0;
  for (int64_t i = 0; i < on_host.numel(); ++i) {
    total += on_host.const_data_ptr<double>()[i];
  }
  return total;
}

}  // namespace

void LossTotals::add(const LossTotals& other) {
  if (!other.sum.defined()) return;
  TORCH_CHECK_VALUE(!sum.defined() || weighted == other.weighted,
                    "the loss function returns a WeightedLoss in one replica "
                    "and a tensor in another; use one loss function on all "
                    "ranks");
  weighted = other.weighted;
  add_to(sum, other.sum);
  weight += other.weight;
  for (const auto& [name, value] : other.metrics) add_to(metrics, name, value);
}

void LossTotals::check() const {
  if (!sum.defined()) return;
  const bool usable = std::isfinite(weight) && weight > 0;
  TORCH_CHECK_VALUE(usable || weighted,
                    "the input has 0 rows in total, so there is no mean of the "
                    "losses; leave out a mini-batch without rows");
  TORCH_CHECK_VALUE(
      usable, "the total of WeightedLoss::weight over all micro-batches",
      " and replicas is ", weight,
      ", but the loss is divided by it, so it must be positive and finite; "
      "leave out a mini-batch without valid tokens");
}

void LossTotals::write_to(StepResult& result) const {
  if (!sum.defined()) return;
  const c10::Device device =
      result.loss.defined() ? result.loss.device() : sum.device();
  result.loss = (weighted ? sum / weight : sum).to(device);
  if (!weighted) return;
  result.weight = weight;
  result.metrics = metrics;
  for (auto& [name, value] : result.metrics) value = value.to(device);
}

LossTotals add_up_weighted(const std::vector<at::Tensor>& losses,
                           const std::deque<LossHead>& heads) {
  LossTotals totals;
  totals.weighted = true;
  for (const at::Tensor& loss : losses) add_to(totals.sum, loss);
  totals.weight = total_weight(heads);
  for (const LossHead& head : heads) {
    for (const auto& [name, value] : head.metrics) {
      add_to(totals.metrics, name, value);
    }
  }
  return totals;
}

LossTotals add_up_means(const std::vector<at::Tensor>& losses,
                        const std::vector<double>& shares) {
  LossTotals totals;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    add_to(totals.sum, losses[i] * shares[i]);
    totals.weight += shares[i];
  }
  return totals;
}

}  // namespace gpipe::internal
