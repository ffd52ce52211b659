// How long a schedule takes where ranks share the cores of a machine.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// As simulate(), for ranks that are threads of one machine with fewer `cores`
// than ranks that want to work at a time: all that do go on, each slower by the
// same factor (processor sharing). With as many cores as ranks it is
// simulate(). `on_cores`: the ranks of which that is true; others have a device
// of their own. Empty: all.
//
// Copies take no time here: the costs must be without latency and bandwidth.
// Nor is there an overlap, or memory.
//
// Errors: those of simulate(); std::invalid_argument unless cores > 0, and for
// costs that are not considered. Complexity: O(n p) for n actions of p ranks.
// Threads: pure function.
Timeline simulate_on_cores(const Schedule& schedule, const Costs& costs,
                           double cores,
                           const std::vector<bool>& on_cores = {});

}  // namespace gpipe
