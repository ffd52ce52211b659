// Simulation of a schedule: its makespan, where ranks wait, and their memory.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Returns the timeline of `schedule` with the times of `costs`. Each rank runs
// its actions one after the other. An action starts as soon as the previous one
// and all that it needs (schedule/order.h) have ended, and outputs from other
// ranks have been copied. O and L take no time of the rank: their copies begin
// when their place in the order is reached and the link with the host is free
// (Costs::host_bandwidth), L not before the end of its O. The backward waits
// for the end of L. A needed action that is not in the schedule counts as done.
// If the costs have bytes, the timeline has the memory of each rank (memory.h).
//
// Throws std::invalid_argument if an action occurs twice, is in an invalid
// block, or can never start (the text names it); if a stage is on two ranks; if
// a stage or micro-batch is below 0, or far more than the actions; and if costs
// are missing, negative, infinite or NaN (the text names them).
// Complexity: O(n) for n actions. Threads: pure function.
Timeline simulate(const Schedule& schedule, const Costs& costs);

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
