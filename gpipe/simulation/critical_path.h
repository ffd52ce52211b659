// Which actions and copies make a timeline as long as it is.
#pragma once

#include <vector>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// One link of the chain that makes the makespan.
struct CriticalStep {
  // An action on `from`, which is `to`; or the copy of what it made, `from` one
  // rank `to` another. The timeline's first rank is Timeline::first_rank.
  Action action;
  int from = 0, to = 0;
  double start = 0, end = 0;  // seconds

  // Whether it is a copy.
  bool is_transfer() const { return from != to; }
};

// The actions and transfers, one after the other, that make the makespan: from
// the last action back, each time to what ended last of all that it waited for;
// the action before on its rank, if there are several. A copy that waited for
// its link waited for the one before, up to the time when that left the link.
//
// A forward waited for all copies to its rank of what earlier stages made of
// its micro-batch, and a backward for those of later stages, that were there
// when it began: which of a rank's stages a skip tensor is for, no timeline
// says.
//
// Of one process of several, the path begins with the last copy on it that came
// from another one, if there is any: what went on there is not known.
//
// In a simulated timeline each step ends where the next one starts, from 0 to
// the makespan. In a measured one there may be gaps, in which something went on
// that a schedule does not know.
//
// Errors: std::invalid_argument for a timeline in which an action waits for
// itself, over others, and for stages or micro-batches below 0 or far beyond
// the number of actions. Complexity: O(n log n), if ranks have few stages each.
// Threads: pure function.
std::vector<CriticalStep> critical_path(const Timeline& timeline);

}  // namespace gpipe
