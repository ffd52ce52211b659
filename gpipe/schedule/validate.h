// Whether a schedule can be run.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns if the schedule is one step of a pipeline, so that each rank can do
// its actions in their order:
//
// - Stages and micro-batches are numbered from 0 without a gap, and all actions
//   of a stage are on one rank. (A rank may have nothing to do.)
// - Every stage has one forward of every micro-batch, and one backward, either
//   whole (B) or in two parts (I and W); or no stage has any backward. There is
//   at most one recompute (R) of each, and only for a backward.
// - A rank has F before R before B or I before W of the same stage and
//   micro-batch.
// - A block (Action::with_next) is a forward and a backward (B or I) of two
//   micro-batches, or a recompute and its own backward (B or I).
// - No deadlock. A rank does an action, or a block, when all that it needs from
//   others (needs.h) has been done, and what comes after waits; what is sent is
//   buffered, so no rank waits for one that receives.
//
// Errors: std::invalid_argument for the first rule above that does not hold,
// at the first place where it does not; a deadlock is told as the circle of
// ranks that wait for each other. Ranks and positions on them count from 0. A
// part of the grid (grid.h) is below.
// Complexity: linear; 10^6 actions take some 0.3 s on one core. Threads: pure
// function.
void validate(const Schedule& schedule);

}  // namespace gpipe
