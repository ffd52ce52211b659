// The gain from making one stage or one link faster.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"

namespace gpipe {

// The gain from a faster stage, or from a faster link between two ranks.
struct Improvement {
  int stage = -1;          // -1: a link
  int from = -1, to = -1;  // ranks; -1: a stage
  double seconds = 0;      // by which the makespan becomes shorter
};

// Returns the gain for each stage of the schedule, and for each link over which
// copies take time, if everything on it took less time by `part` (0.1 is 10 %).
// Copies to and from the host keep their time. The largest gain comes first. At
// equal gains stages come before links, then lower numbers before higher ones.
//
// Each gain comes from a simulation, so it accounts for other actions that
// become critical. Gains of several stages or links do not add up. No gain is
// negative, since ranks and links keep their order.
//
// Throws std::invalid_argument in the cases of simulate(), and unless
// 0 <= part <= 1.
// Complexity: O((stages + links) * n) for n actions. Threads: pure function.
std::vector<Improvement> improve_first(const Schedule& schedule,
                                       const Costs& costs, double part = 0.1);

}  // namespace gpipe
