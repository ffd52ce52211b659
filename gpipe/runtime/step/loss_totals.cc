#include "gpipe/runtime/step/loss_totals.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "gpipe/runtime/device/copier.h"

namespace gpipe::internal {
namespace {

// Adds `value` to `sum`, which may be undefined.
void add_to(at::Tensor& sum, const at::Tensor& value) {
  sum = sum.defined() ? sum + value : value;
}

void add_to(Metrics& metrics, const std::string& name, at::Tensor value) {
  // A sum of a narrow type would wrap.
  if (c10::isIntegralType(value.scalar_type(), /*includeBool=*/true)) {
    value = value.to(at::kLong);
  }
  value = value.reshape({});
  const auto found = std::ranges::find_if(
      metrics, [&](const auto& each) { return each.first == name; });
  if (found == metrics.end()) {
    metrics.emplace_back(name, std::move(value));
  } else {
    add_to(found->second, value);
  }
}

bool is_meta(const std::vector<at::Tensor>& losses) {
  return !losses.empty() && losses.front().is_meta();
}

// Reads all numbers of `totals`, the losses of the micro-batches and `weights`
// in one copy. Returns the weights.
std::vector<at::Tensor> read_all(LossTotals& totals,
                                 const std::vector<at::Tensor>& losses,
                                 const std::vector<at::Tensor>& weights) {
  std::vector<at::Tensor> all = losses;
  all.insert(all.end(), weights.begin(), weights.end());
  if (totals.sum.defined()) all.push_back(totals.sum);
  for (const auto& [name, value] : totals.metrics) all.push_back(value);
  all = scalars_on_host(all);
  auto next = all.begin();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    totals.losses.push_back((next++)->item<double>());
  }
  const auto end_of_weights =
      next + static_cast<std::ptrdiff_t>(weights.size());
  std::vector<at::Tensor> read(next, end_of_weights);
  next = end_of_weights;
  if (totals.sum.defined()) totals.sum = *next++;
  for (auto& [name, value] : totals.metrics) value = *next++;
  return read;
}

// Returns `sum / weight`, with the same bits on every device. Accelerators
// multiply by the rounded reciprocal of a number of the host, so the weight is
// a tensor; 16 bits would round it. The sum is widened, too: one with a
// dimension would narrow the weight.
at::Tensor quotient(const at::Tensor& sum, double weight) {
  const at::ScalarType own = sum.scalar_type();
  const at::ScalarType wide = at::promote_types(own, at::kFloat);
  const at::Tensor result =
      sum.to(wide) / at::scalar_tensor(weight, sum.options().dtype(wide));
  return c10::isReducedFloatingType(own) ? result.to(own) : result;
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
  // A copy to an accelerator has read the host's memory when it returns.
  const bool non_blocking = !device.is_cpu();
  result.loss =
      (weighted ? quotient(sum, weight) : sum).to(device, non_blocking);
  if (!weighted) return;
  result.weight = weight;
  result.metrics = metrics;
  for (auto& [name, value] : result.metrics)
    value = value.to(device, non_blocking);
}

LossTotals add_up_weighted(const std::vector<at::Tensor>& losses,
                           const std::deque<LossHead>& heads, bool reads) {
  LossTotals totals;
  totals.weighted = true;
  std::vector<at::Tensor> weights;
  for (const at::Tensor& loss : losses) add_to(totals.sum, loss);
  for (const LossHead& head : heads) {
    weights.push_back(head.weight);
    for (const auto& [name, value] : head.metrics) {
      add_to(totals.metrics, name, value);
    }
  }
  if (is_meta(losses)) {
    totals.weight = 1;
    return totals;
  }
  weights =
      reads ? read_all(totals, losses, weights) : scalars_on_host(weights);
  for (const at::Tensor& each : weights) totals.weight += each.item<double>();
  return totals;
}

LossTotals add_up_means(const std::vector<at::Tensor>& losses,
                        const std::vector<double>& shares, bool reads) {
  LossTotals totals;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    // The mean over no rows is NaN, and NaN times 0 too.
    add_to(totals.sum,
           shares[i] == 0 ? at::zeros_like(losses[i]) : losses[i] * shares[i]);
    totals.weight += shares[i];
  }
  if (reads && !is_meta(losses)) read_all(totals, losses, {});
  return totals;
}

}  // namespace gpipe::internal
