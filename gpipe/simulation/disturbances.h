// What makes a step slower than its costs say: slow ranks, noise, and links
// that fail for some time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// A time in which the link from rank `from` to rank `to` carries nothing. A
// copy that has begun goes on when the link is back.
struct Outage {
  int from = 0, to = 0;
  // In seconds: from the beginning of the step to the start, and the length.
  double start = 0, seconds = 0;
};

// Disturbances of one step. The default has none.
struct Disturbances {
  // How many times as long as in Costs each rank computes, > 0. 2 is a
  // straggler at half of its speed. Empty: 1 for all ranks.
  std::vector<double> rank_factors;
  // The standard deviation of an action's time, as a fraction of its mean, >=
  // 0. Each action is multiplied by an independent number with a log-normal
  // distribution of mean 1 (by SplitMix64 and Box-Muller, disturbances.cc).
  double jitter = 0;
  // The numbers depend on the seed and on the stage, kind and micro-batch of
  // the action, so that all schedules are compared with the same noise.
  std::uint64_t seed = 0;
  std::vector<Outage> outages;
};

// Throws std::invalid_argument if a number is not finite or out of its range,
// if `rank_factors` is neither empty nor has one entry per rank, or if an
// outage names a rank that is not below `ranks`. Complexity: linear. Threads:
// pure function.
void check_disturbances(const Disturbances& disturbances, std::size_t ranks);

namespace internal {

// Returns the factor by which the jitter multiplies the time of `action`.
// Complexity: O(1). Threads: pure function.
double jitter_factor(const Disturbances& disturbances, const Action& action);

}  // namespace internal
}  // namespace gpipe
