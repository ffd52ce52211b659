// Simulation of a schedule: its makespan, where ranks wait, and their memory.
#pragma once

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Returns the timeline of `schedule` with the times of `costs`. Each rank runs
// its actions one after the other. An action starts as soon as the previous one
// and all that it needs (schedule/needs.h) have ended, and outputs from other
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

}  // namespace gpipe
