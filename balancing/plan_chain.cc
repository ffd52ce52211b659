// plan() for one schedule, with the exact cuts of balance_chain().
#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "balancing/chain/chain.h"
#include "balancing/plan_parts.h"
#include "balancing/solver/infeasible.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::balancing::detail {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

const char* name_of(PlanSchedule schedule) {
  return schedule == PlanSchedule::kOneForwardOneBackward ? "1f1b"
                                                          : "fill-drain";
}

// One number of micro-batches with one checkpoint mode.
class Candidate {
 public:
  // `scale`: rows of a micro-batch divided by the rows of the profile.
  Candidate(const Profile& profile, double scale,
            const std::vector<PlanDevice>& devices, const PlanOptions& options,
            int64_t chunks, Checkpoint checkpoint)
      : profile_(profile),
        scale_(scale),
        devices_(devices),
        options_(options),
        chunks_(chunks),
        checkpoint_(checkpoint) {}

  // Throws InfeasibleError if no cut fits.
  Plan plan() const {
    const Chain chain = make_chain();
    Plan plan;
    plan.balance = balance_chain(with_recomputes(chain));
    plan.chunks = chunks_;
    plan.checkpoint = checkpoint_;
    plan.schedule_name = name_of(options_.schedule());

    Costs costs;
    std::vector<double> copies;
    const auto stages = stage_costs(chain, plan.balance);
    int64_t first = 0;
    for (std::size_t j = 0; j < stages.size(); ++j) {
      PlannedPartition part;
      part.device = devices_[j].device();
      part.first_layer = first;
      part.layers = plan.balance[j];
      part.stages = {static_cast<int64_t>(j)};
      part.forward = stages[j].forward;
      part.backward = stages[j].backward;
      part.memory_limit = devices_[j].memory_bytes();
      part.memory_bytes = memory_of(chain, j, first, first + part.layers);
      costs.forward.push_back(part.forward);
      costs.backward.push_back(part.backward);
      costs.recompute.push_back(part.forward);
      if (j > 0) copies.push_back(stages[j].transfer);
      first += part.layers;
      plan.partitions.push_back(part);
    }
    Timeline timeline = run(costs, copies);
    plan.sum_seconds = sum_seconds(plan);
    plan.step_seconds = timeline.makespan + plan.sum_seconds;
    set_idle(timeline, plan.partitions);
    plan.timeline = std::move(timeline);
    return plan;
  }

 private:
  int64_t recomputed() const {
    return checkpointed_microbatches(checkpoint_, chunks_);
  }

  double sum_seconds(const Plan& plan) const {
    double longest = 0;
    for (std::size_t j = 0; j < options_.gradient_sums().size(); ++j) {
      const PlannedPartition& part = plan.partitions[j];
      double bytes = 0;
      for (int64_t k = 0; k < part.layers; ++k) {
        bytes += static_cast<double>(
            profile_.memory.layers[part.first_layer + k].trained_bytes);
      }
      const PlanLink& sum = options_.gradient_sums()[j];
      longest = std::max(longest, sum.latency + bytes / sum.bandwidth);
    }
    return longest;
  }

  Schedule schedule() const {
    const auto stages = static_cast<int>(devices_.size());
    const auto count = static_cast<int>(chunks_);
    return with_recompute(
        options_.schedule() == PlanSchedule::kFillDrain
            ? fill_drain(stages, count)
            : one_forward_one_backward(stages, count),
        [count = recomputed()](int microbatch) { return microbatch < count; });
  }

  // Simulates a step. `copies`: seconds from each partition to the next.
  Timeline run(const Costs& costs, const std::vector<double>& copies) const {
    const auto workers = static_cast<double>(workers_of(devices_, options_));
    Timeline shared = simulate_on_cores(schedule(), costs, workers);
    if (std::ranges::none_of(copies,
                             [](double seconds) { return seconds > 0; })) {
      return shared;
    }
    Costs with_copies = costs;
    with_copies.boundary_bytes = copies;
    with_copies.bandwidth = 1;  // so that bytes are seconds
    Timeline timeline = simulate(schedule(), with_copies);
    // The combined effect of shared cores and copies is not known, so the
    // slower of both predictions is used.
    return timeline.makespan < shared.makespan ? shared : timeline;
  }

  double scaled(int64_t bytes) const {
    return scale_ * static_cast<double>(bytes);
  }

  double resident(int64_t layer) const {
    const LayerMemory& memory = profile_.memory.layers[layer];
    return options_.param_scale() * static_cast<double>(memory.trained_bytes) +
           static_cast<double>(memory.parameter_bytes - memory.trained_bytes +
                               memory.buffer_bytes);
  }

  Chain make_chain() const {
    Chain chain;
    chain.microbatches = chunks_;
    chain.link = {options_.latency(), 1 / options_.bandwidth()};
    for (const PlanDevice& device : devices_) {
      chain.devices.push_back({device.speed(), device.memory_bytes()});
    }
    for (std::size_t k = 0; k < profile_.times.size(); ++k) {
      const LayerTime time =
          microbatch_time({&profile_, scale_, chunks_}, profile_.times[k]);
      ChainLayer layer;
      layer.forward = time.forward;
      layer.backward = time.backward;
      layer.output_bytes = scaled(profile_.memory.layers[k].output_bytes);
      layer.resident_bytes = resident(static_cast<int64_t>(k));
      chain.layers.push_back(layer);
    }
    // A tensor that several layers keep counts for the first of them. In
    // another partition it arrives from outside and is counted there as input.
    for (const SavedTensor& saved : profile_.memory.saved) {
      if (saved.savers.empty()) continue;
      chain.layers[saved.savers[0]].saved_bytes += scaled(saved.bytes);
    }
    for (const SkipMemory& skip : profile_.memory.skips) {
      chain.skips.push_back(
          {skip.stashed_by, skip.popped_by, scaled(skip.bytes)});
    }
    keep_for(chain,
             options_.schedule() == PlanSchedule::kFillDrain
                 ? ChainSchedule::kFillDrain
                 : ChainSchedule::kOneForwardOneBackward,
             checkpoint_);
    return chain;
  }

  // When the cut is chosen, a recompute counts as part of its backward.
  Chain with_recomputes(Chain chain) const {
    if (recomputed() == 0) return chain;
    for (ChainLayer& layer : chain.layers) layer.backward += layer.forward;
    return chain;
  }

  double memory_of(const Chain& chain, std::size_t partition, int64_t first,
                   int64_t last) const {
    double bytes = 0;
    for (int64_t k = first; k < last; ++k) bytes += resident(k);
    bytes += static_cast<double>(chain.graphs_kept[partition]) *
             scaled(profile_.memory.saved_bytes(first, last));
    if (partition > 0) {
      bytes += static_cast<double>(chain.inputs_kept[partition]) *
               scaled(profile_.memory.incoming_bytes(first, last));
    }
    return bytes;
  }

  const Profile& profile_;
  const double scale_;
  const std::vector<PlanDevice>& devices_;
  const PlanOptions& options_;
  const int64_t chunks_;
  const Checkpoint checkpoint_;
};

// Tries candidates and keeps the best one.
class Planner {
 public:
  Planner(const std::vector<PlanDevice>& devices, const PlanOptions& options)
      : devices_(devices), options_(options) {}

  void try_modes(const PlanSample& sample) {
    for (const Checkpoint checkpoint : options_.checkpoints()) {
      PlanCandidate tried;
      tried.chunks = sample.chunks;
      tried.checkpoint = checkpoint;
      tried.step_seconds = kNever;
      tried.schedule = name_of(options_.schedule());
      try {
        Plan plan = Candidate(*sample.profile, sample.scale, devices_, options_,
                              sample.chunks, checkpoint)
                        .plan();
        tried.step_seconds = plan.step_seconds;
        if (!best_ || plan.step_seconds < best_->step_seconds) {
          best_ = std::move(plan);
        }
      } catch (const InfeasibleError& error) {
        tried.remark = error.what();
        if (!nearest_ || error.least_bytes() < nearest_->least_bytes()) {
          nearest_ = error;
        }
      }
      candidates_.push_back(std::move(tried));
    }
  }

  Plan take() {
    if (!best_) throw InfeasibleError(*nearest_);
    best_->candidates = std::move(candidates_);
    return *std::move(best_);
  }

 private:
  const std::vector<PlanDevice>& devices_;
  const PlanOptions& options_;
  std::optional<Plan> best_;
  std::optional<InfeasibleError> nearest_;
  std::vector<PlanCandidate> candidates_;
};

}  // namespace

Plan plan_chain(const std::vector<PlanSample>& samples,
                const std::vector<PlanDevice>& devices,
                const PlanOptions& options) {
  Planner planner(devices, options);
  for (const PlanSample& sample : samples) planner.try_modes(sample);
  return planner.take();
}

}  // namespace gpipe::balancing::detail
