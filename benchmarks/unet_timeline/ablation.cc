#include "benchmarks/unet_timeline/ablation.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>

#include "benchmarks/harness/costs/step_costs.h"
#include "gpipe/schedule/microbatches.h"

namespace gpipe::benchmarks {
namespace {

// Shuffles the backwards of each rank. A fill-drain schedule has all of them at
// the end of the rank's actions.
void shuffle_backwards(Schedule& schedule, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto& actions : schedule.ranks) {
    const auto first =
        std::find_if(actions.begin(), actions.end(), [](const Action& action) {
          return action.kind == ActionKind::kBackward;
        });
    std::shuffle(first, actions.end(), random);
  }
}

}  // namespace

Schedule ablated_schedule(int partitions, int microbatches, int checkpointed,
                          const Mechanisms& mechanisms, uint64_t seed) {
  Schedule schedule = fill_drain(partitions, microbatches);
  if (!mechanisms.ordered_backward) shuffle_backwards(schedule, seed);
  return with_recompute(
      schedule, [=](int microbatch) { return microbatch < checkpointed; },
      mechanisms.early_recompute ? RecomputePlacement::kBeforeBackward
                                 : RecomputePlacement::kWithBackward);
}

Costs with_copies_in_turn(Costs costs) {
  const std::size_t boundaries = costs.forward.size() - 1;
  for (std::size_t j = 0; j < boundaries; ++j) {
    double seconds = costs.latency;
    if (costs.bandwidth > 0) {
      seconds += costs.boundary_bytes.at(j) / costs.bandwidth;
    }
    for (const std::size_t end : {j, j + 1}) {
      costs.forward[end] += seconds;
      costs.backward[end] += seconds;
    }
  }
  costs.latency = 0;
  costs.bandwidth = 0;
  return costs;
}

Timeline simulate_ablated(const balancing::Profile& profile,
                          const Experiment& experiment, const Link& link,
                          double device_speed, const Mechanisms& mechanisms,
                          uint64_t seed) {
  Costs costs = costs_of(profile, experiment, link, device_speed);
  if (!mechanisms.copy_streams) costs = with_copies_in_turn(std::move(costs));
  const int64_t count =
      num_microbatches(experiment.batch_size, experiment.chunks);
  const int64_t checkpointed =
      checkpointed_microbatches(experiment.checkpoint, count);
  return simulate(
      ablated_schedule(static_cast<int>(experiment.partitions),
                       static_cast<int>(count), static_cast<int>(checkpointed),
                       mechanisms, seed),
      costs);
}

}  // namespace gpipe::benchmarks
