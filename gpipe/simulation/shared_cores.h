// Simulation of a schedule whose ranks share the cores of one machine.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Simulates `schedule` on ranks that are threads of one machine with `cores`
// cores. If more ranks work at a time than there are cores, all of them slow
// down by the same factor (processor sharing). With as many cores as ranks the
// result is that of simulate().
//
// `on_cores`: for each rank, whether it shares the cores; other ranks have a
// device of their own. Empty: all ranks share the cores.
//
// Copies, also O and L, take no time and blocks do not overlap: the costs must
// have no latency, no bandwidth, no host_bandwidth and no overlap. If there are
// fewer cores than ranks that share them, the result has no memory.
//
// Throws std::invalid_argument in the cases of simulate(), unless cores > 0, if
// `on_cores` has the wrong size, and if latency, bandwidth, host_bandwidth or
// overlap are above 0. Complexity: O(n p) for n actions of p ranks. Threads:
// pure function.
Timeline simulate_on_cores(const Schedule& schedule, const Costs& costs,
                           double cores,
                           const std::vector<bool>& on_cores = {});

}  // namespace gpipe
