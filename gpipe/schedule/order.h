// The one order of all actions of a schedule, over all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// result[r][k] is the tick at which action k of rank r starts when every
// action takes one tick of a common clock and starts as early as it can: after
// the one before it on its rank and all that it needs (needs.h), where what is
// not in the schedule is taken as done. A block (Action::with_next) starts when
// the needs of all its actions are done, and has no tick between them.
//
// result[r] ends early where rank r gets stuck: ranks[r][result[r].size()] can
// never start, or begins a block that cannot. Of an action that comes more than
// once on a rank, others wait for the first.
//
// Complexity: linear. Threads: pure function.
std::vector<std::vector<int64_t>> start_ticks(const Schedule& schedule);

// positions[r][k] is the place of action k of rank r among all actions, by
// start_ticks(); ties go to the lower rank. Along a rank the positions grow,
// and an action comes after all that it needs.
//
// This is what "first" means when several actions fail: for fill-drain the
// forward of micro-batch i on stage j is at clock i + j, as in torchgpipe.
//
// std::invalid_argument if some action can never start, naming one of them.
std::vector<std::vector<int64_t>> clock_order(const Schedule& schedule);

}  // namespace gpipe
