#include "balancing/plan_replicas.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "balancing/solver/infeasible.h"

namespace gpipe::balancing {
namespace {

// The worst of the links or devices that have the same place in each replica.
class Worst {
 public:
  Worst(const std::vector<PlanDevice>& devices, const PlanOptions& options,
        int64_t replicas)
      : devices_(devices),
        options_(options),
        replicas_(static_cast<std::size_t>(replicas)),
        ranks_(devices.size() / replicas_) {}

  std::vector<PlanDevice> devices() const {
    std::vector<PlanDevice> result(
        devices_.begin(),
        devices_.begin() + static_cast<std::ptrdiff_t>(ranks_));
    for (std::size_t k = ranks_; k < devices_.size(); ++k) {
      PlanDevice& worst = result[k % ranks_];
      const PlanDevice& each = devices_[k];
      worst.speed(std::min(worst.speed(), each.speed()));
      worst.memory_bytes(std::min(worst.memory_bytes(), each.memory_bytes()));
      worst.host_bandwidth(
          std::min(worst.host_bandwidth(), each.host_bandwidth()));
    }
    return result;
  }

  // Returns the links within a replica; none if all links are equal.
  std::vector<PlanLink> links() const {
    if (options_.links().empty()) return {};
    std::vector<PlanLink> result;
    for (std::size_t a = 0; a < ranks_; ++a) {
      for (std::size_t b = 0; b < ranks_; ++b) {
        PlanLink worst;
        for (std::size_t d = 0; d < replicas_; ++d) {
          worst = worse(worst, link(d * ranks_ + a, d * ranks_ + b));
        }
        result.push_back(worst);
      }
    }
    return result;
  }

  // Returns the seconds in which the devices of a rank add up `bytes`.
  double sum_seconds(std::size_t rank, double bytes) const {
    const auto d = static_cast<double>(replicas_);
    PlanLink worst;
    for (std::size_t k = 0; k < replicas_; ++k) {
      const std::size_t next = (k + 1) % replicas_;
      worst = worse(worst, link(k * ranks_ + rank, next * ranks_ + rank));
    }
    return 2 * (d - 1) * (worst.latency + bytes / d / worst.bandwidth);
  }

 private:
  PlanLink link(std::size_t from, std::size_t to) const {
    if (options_.links().empty()) {
      return {options_.latency(), options_.bandwidth()};
    }
    return options_.links()[from * devices_.size() + to];
  }

  static PlanLink worse(const PlanLink& a, const PlanLink& b) {
    return {std::max(a.latency, b.latency), std::min(a.bandwidth, b.bandwidth)};
  }

  const std::vector<PlanDevice>& devices_;
  const PlanOptions& options_;
  const std::size_t replicas_, ranks_;
};

// Returns the bytes of trained parameters of a stage.
double trained_bytes(const Profile& profile, const Plan& plan, int64_t stage) {
  int64_t first = 0;
  for (int64_t s = 0; s < stage; ++s) first += plan.balance[s];
  double bytes = 0;
  for (int64_t k = first; k < first + plan.balance[stage]; ++k) {
    bytes += static_cast<double>(profile.memory.layers[k].trained_bytes);
  }
  return bytes;
}

ReplicatedPlan plan_one(const Profile& profile, int64_t rows,
                        const std::vector<PlanDevice>& devices,
                        int64_t replicas, bool shard_optimizer,
                        const PlanOptions& given) {
  const auto count = std::ssize(devices);
  TORCH_CHECK_VALUE(replicas >= 1 && count % replicas == 0,
                    "plan_replicas: ", count,
                    " devices cannot be divided into ", replicas, " replicas");
  TORCH_CHECK_VALUE(replicas <= rows, "plan_replicas: a mini-batch of ", rows,
                    " rows is too small for ", replicas, " replicas");
  TORCH_CHECK_VALUE(given.links().empty() ||
                        given.links().size() == devices.size() * devices.size(),
                    "plan_replicas: ", count, " devices have ", count * count,
                    " links, but there are ", given.links().size());
  const Worst worst(devices, given, replicas);
  PlanOptions options = given;
  options.links(worst.links());
  constexpr double kOfGradients = 2;  // a parameter and its gradient
  if (shard_optimizer && options.param_scale() > kOfGradients) {
    options.param_scale(kOfGradients + (options.param_scale() - kOfGradients) /
                                           static_cast<double>(replicas));
  }
  ReplicatedPlan result;
  result.replicas = replicas;
  result.plan =
      plan(profile, (rows + replicas - 1) / replicas, worst.devices(), options);
  for (std::size_t r = 0; r < result.plan.partitions.size(); ++r) {
    double bytes = 0;
    for (const int64_t stage : result.plan.partitions[r].stages) {
      bytes += trained_bytes(profile, result.plan, stage);
    }
    result.sum_seconds =
        std::max(result.sum_seconds, worst.sum_seconds(r, bytes));
  }
  result.step_seconds = result.plan.step_seconds + result.sum_seconds;
  return result;
}

}  // namespace

std::vector<ReplicatedPlan> plan_replicas(
    const Profile& profile, int64_t rows,
    const std::vector<PlanDevice>& devices,
    const std::vector<int64_t>& replicas, bool shard_optimizer,
    const PlanOptions& options) {
  TORCH_CHECK_VALUE(!replicas.empty(),
                    "plan_replicas: there must be at least 1 number of "
                    "replicas");
  std::vector<ReplicatedPlan> plans;
  std::optional<InfeasibleError> error;
  for (const int64_t each : replicas) {
    try {
      plans.push_back(
          plan_one(profile, rows, devices, each, shard_optimizer, options));
    } catch (const InfeasibleError& infeasible) {
      if (!error) error = infeasible;
    }
  }
  if (plans.empty()) throw InfeasibleError(*error);
  std::ranges::stable_sort(plans, {}, &ReplicatedPlan::step_seconds);
  return plans;
}

}  // namespace gpipe::balancing
