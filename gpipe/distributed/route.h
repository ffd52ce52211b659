// Which messages go from rank to rank in a step, and in what order. No network.
#pragma once

#include <vector>

#include "gpipe/runtime/border.h"
#include "gpipe/runtime/step.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// What one action makes for stages of one rank, which goes there as one
// message: skip tensors in the order of their links, then what goes to the
// neighbour.
using Bundle = std::vector<Passage>;

// What rank `from` sends to rank `to`, in the order in which it is sent: that
// of the actions of `from`. Both know it from the schedule alone, so that the
// receiver can wait for each by name, and need not ask.
std::vector<Bundle> route(const Schedule& schedule,
                          const std::vector<int>& rank_of_stage,
                          const std::vector<SkipLink>& links, int from, int to);

}  // namespace gpipe
