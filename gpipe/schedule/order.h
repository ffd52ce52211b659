// The one order of all actions of a schedule, over all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// positions[r][k] is the place of action k of rank r when every action takes
// one tick of a common clock and starts as early as it can; ties go to the
// lower rank. Along a rank the positions grow, and an action comes after all
// that it needs: F of the stage before, B (or I) of the stage after, its own F
// and, for W, its own I. What is not in the schedule is taken as done.
//
// This is what "first" means when several actions fail: for fill-drain the
// forward of micro-batch i on stage j is at clock i + j, as in torchgpipe.
//
// std::invalid_argument if some action can never start, naming one of them.
std::vector<std::vector<int64_t>> clock_order(const Schedule& schedule);

}  // namespace gpipe
