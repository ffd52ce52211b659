// Why the ranks of a timeline are idle.
#pragma once

#include <string>
#include <vector>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Seconds of a rank.
struct IdleParts {
  // It waited for what other ranks computed: as long as it would if all stages
  // took equally long (the warm-up and the drain of the schedule) ...
  double schedule = 0;
  // ... and beyond that.
  double imbalance = 0;
  // For copies.
  double transfer = 0;
  // Nothing was missing: what goes on between actions.
  double overhead = 0;

  double total() const { return schedule + imbalance + transfer + overhead; }
};

// Of each rank; total() is Timeline::idle but for rounding. A rank that waits
// for another one, which is idle too, waits for what that one waits for, at any
// moment; after its last action a rank waits for the end of the step.
//
// "Equally long": the schedule is simulated with the mean of each kind of
// action over all stages.
//
// The timeline is of a whole schedule, simulated or measured. (What a timeline
// does not know, as measured ones do not know copies, is overhead.)
//
// Errors: std::invalid_argument for a timeline in which an action waits for
// itself, over others. Complexity: O(n p) for n actions on p ranks, if few
// ranks are idle together. Threads: pure function.
std::vector<IdleParts> idle_parts(const Timeline& timeline);

// A line for each rank and one for all: the parts in seconds, and as parts of
// the idle time.
std::string to_text(const std::vector<IdleParts>& parts);

}  // namespace gpipe
