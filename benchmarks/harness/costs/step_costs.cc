#include "benchmarks/harness/costs/step_costs.h"

#include <cmath>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "balancing/stage_costs.h"
#include "gpipe/schedule.h"
#include "gpipe/schedule/microbatches.h"

namespace gpipe::benchmarks {

Costs costs_of(const balancing::Profile& profile, const Experiment& experiment,
               const Link& link, double device_speed) {
  const bool plain = experiment.partitions == 0;
  Costs costs = balancing::stage_costs(
      profile, experiment.batch_size, plain ? 1 : experiment.chunks,
      plain ? std::vector<int64_t>{std::ssize(profile.times)}
            : experiment.balance,
      device_speed);
  costs.latency = link.latency;
  costs.bandwidth = link.bandwidth;
  return costs;
}

Timeline simulate_step(const balancing::Profile& profile,
                       const Experiment& experiment, const Link& link,
                       double device_speed) {
  const Costs costs = costs_of(profile, experiment, link, device_speed);
  const bool plain = experiment.partitions == 0;
  const int64_t count =
      plain ? 1 : num_microbatches(experiment.batch_size, experiment.chunks);
  const int64_t recomputed =
      plain ? 0 : checkpointed_microbatches(experiment.checkpoint, count);
  const Schedule schedule =
      with_recompute(fill_drain(static_cast<int>(costs.forward.size()),
                                static_cast<int>(count)),
                     [=](int microbatch) { return microbatch < recomputed; });
  return simulate(schedule, costs);
}

double speed_for(const balancing::Profile& profile,
                 const Experiment& experiment, const Link& link,
                 double seconds) {
  const auto makespan = [&](double speed) {
    return simulate_step(profile, experiment, link, speed).makespan;
  };
  const double with_copies_only = makespan(1e15);
  if (with_copies_only > seconds) {
    std::ostringstream text;
    text << experiment.name << " cannot take " << seconds
         << " s on any device: its copies take " << with_copies_only
         << " s; raise the bandwidth of the links";
    throw std::invalid_argument(text.str());
  }
  double low = 1, high = 1;
  while (makespan(low) <= seconds) low /= 2;
  while (makespan(high) > seconds) high *= 2;
  while (high / low - 1 > 1e-10) {
    const double middle = std::sqrt(low * high);
    (makespan(middle) > seconds ? low : high) = middle;
  }
  return high;
}

}  // namespace gpipe::benchmarks
