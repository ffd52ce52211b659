// The actions and copies that determine the makespan of a timeline.
#pragma once

#include <vector>

#include "gpipe/simulation/timeline.h"

namespace gpipe {

// One action or copy of a critical path.
struct CriticalStep {
  // The action, or the action whose output is copied. An O or L is the copy to
  // or from the host.
  Action action;
  // Ranks. Of an action, both are its rank. Of a copy to another rank, they are
  // its link. The first rank of the timeline is Timeline::first_rank.
  int from = 0, to = 0;
  double start = 0, end = 0;  // seconds

  // Returns whether this is a copy to another rank.
  bool is_transfer() const { return from != to; }
};

// Returns the actions and copies that determine the makespan, in the order of
// time. The search goes back from the last action. Each step is preceded by the
// one that ended last among those for which it waited. If several ended at the
// same time, that is the previous action on its rank. A copy that waited for
// its link is preceded by the previous copy on that link, up to the time at
// which that copy left the link. A copy to or from the host waits for the
// actions before its place, for the previous copy in its direction, and L for
// its O.
//
// A timeline does not say which stage of a rank a skip tensor is for. So a
// forward counts as waiting for all copies of its micro-batch from earlier
// stages to its rank that had arrived when it began. A backward counts as
// waiting for those from later stages.
//
// The timeline of one process of several does not know what other processes
// did. There the path begins with the last copy on it that came from another
// process, if there is one.
//
// In a simulated timeline each step ends when the next one starts, from 0 to
// the makespan. In a measured one there may be gaps: work that is not in the
// schedule.
//
// Throws std::invalid_argument if actions of the timeline wait for each other
// in a cycle, or if stages or micro-batches are below 0 or far more than the
// actions. Complexity: O(n log n) for n actions, if ranks have few stages each.
// Threads: pure function.
std::vector<CriticalStep> critical_path(const Timeline& timeline);

}  // namespace gpipe
