// How much longer a step of a schedule takes if ranks, links or times are not
// as planned.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"

namespace gpipe {

// The disturbances that sensitivity() tries.
struct SensitivityOptions {
  // How many times as long one rank computes, > 0: each rank in turn.
  std::vector<double> stragglers = {1.1, 1.25, 1.5, 2};
  // Disturbances::jitter, each with the seeds 0 to `seeds` - 1.
  std::vector<double> jitters = {0.05, 0.1, 0.2, 0.4};
  int seeds = 8;
  // How long one link is down, as a fraction of the undisturbed step, >= 0:
  // each link in turn, from the middle of the undisturbed step on.
  std::vector<double> outages = {0.01, 0.05, 0.1, 0.2};
};

// The time of a disturbed step divided by that of an undisturbed one, over all
// ranks, links or seeds.
struct Slowdown {
  double mean = 1, worst = 1;
};

// One entry for each entry of the list of the same name in SensitivityOptions.
// An entry is {1, 1} if there are no links to disturb.
struct Sensitivity {
  std::vector<Slowdown> stragglers, jitters, outages;
};

// Simulates `schedule` with each disturbance of `options`.
//
// A schedule cannot be slower than its slowest rank demands: with a straggler
// of factor x on a rank that works w of the makespan T, it takes at least
// max(1, x * w / T) times as long.
//
// Throws what simulate() throws, and std::invalid_argument if an option is out
// of its range, or if the undisturbed step takes no time.
// Complexity: a simulation without a record per rank and straggler, per seed
// and jitter, and per link and outage. Threads: pure function.
Sensitivity sensitivity(const Schedule& schedule, const Costs& costs,
                        const SensitivityOptions& options = {});

}  // namespace gpipe
