// What an action of a schedule waits for.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// The actions that must have ended before `action` may start, if they are in
// the schedule: F of the stage before, B (or I) of the stage after, its own F
// and recompute and, for W, its own I.
std::vector<Action> needs(const Action& action);

}  // namespace gpipe
