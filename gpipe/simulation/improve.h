// What to make faster first.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"

namespace gpipe {

// Of a stage, or of the link from one rank to another.
struct Improvement {
  int stage = -1;          // -1: of a link
  int from = -1, to = -1;  // -1: of a stage
  double seconds = 0;      // by which the makespan would be shorter
};

// For each stage of the schedule, and for each link over which copies take
// time: what it would gain if everything on it took `part` less time, 0.1 being
// 10 % less. The largest gain comes first, stages before links at equal gains,
// then by their numbers. Found by simulating again, so what becomes critical
// instead is accounted for; gains of several together are not the sum.
//
// No gain is negative: ranks and links keep their order, so nothing comes later
// because something else takes less.
//
// Errors: those of simulate(); std::invalid_argument unless 0 <= part <= 1.
// Complexity: O((stages + links) * n). Threads: pure function.
std::vector<Improvement> improve_first(const Schedule& schedule,
                                       const Costs& costs, double part = 0.1);

}  // namespace gpipe
