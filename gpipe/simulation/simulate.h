// How long a schedule takes, where its ranks wait, and what they hold.
#pragma once

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Runs each rank's actions one after the other, each as soon as the one before
// and those that it needs (schedule/needs.h) have ended and, if they are on
// another rank, what they made has been copied. What is not in the schedule is
// taken as done. If the costs have bytes, the timeline has the memory of each
// rank (memory.h).
//
// Errors: std::invalid_argument for an action that comes twice, that is in a
// block that cannot be, or that can never start, naming it; for a stage on two
// ranks; and for costs that are missing, negative, infinite or NaN, with their
// place.
// Complexity: O(n) for n actions. Threads: pure function.
Timeline simulate(const Schedule& schedule, const Costs& costs);

}  // namespace gpipe
