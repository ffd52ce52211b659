#include "balancing/plan_replicas.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "balancing/infeasible.h"

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

  // Returns how long the devices of each rank add up gradients.
  std::vector<PlanLink> gradient_sums() const {
    if (replicas_ == 1) return {};
    const auto d = static_cast<double>(replicas_);
    const double hops = 2 * (d - 1);
    std::vector<PlanLink> result;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      PlanLink worst;
      for (std::size_t k = 0; k < replicas_; ++k) {
        const std::size_t next = (k + 1) % replicas_;
        worst = worse(worst, link(k * ranks_ + rank, next * ranks_ + rank));
      }
      result.push_back({hops * worst.latency, worst.bandwidth * d / hops});
    }
    return result;
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
  options.links(worst.links()).gradient_sums(worst.gradient_sums());
  constexpr double kOfGradients = 2;  // a parameter and its gradient
  if (shard_optimizer && options.param_scale() > kOfGradients) {
    options.param_scale(kOfGradients + (options.param_scale() - kOfGradients) /
                                           static_cast<double>(replicas));
  }
  const int64_t rows_of_replica = (rows + replicas - 1) / replicas;
  return {replicas, plan(profile, rows_of_replica, worst.devices(), options)};
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
  TORCH_CHECK_VALUE(options.gradient_sums().empty(),
                    "plan_replicas: sets gradient_sums itself, but there are ",
                    options.gradient_sums().size());
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
  std::ranges::stable_sort(plans, {}, [](const ReplicatedPlan& each) {
    return each.plan.step_seconds;
  });
  return plans;
}

}  // namespace gpipe::balancing
