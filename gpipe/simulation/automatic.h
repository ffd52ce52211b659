// A schedule made for given costs: for stages that do not take equally long,
// for slow links, and for ranks with little memory.
#pragma once

#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/automatic_options.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// What automatic_schedule() has found.
struct AutomaticSchedule {
  Schedule schedule;
  // By simulate(), where the costs of B are those of I and W together if only
  // these are given.
  Timeline timeline;
  // Where it comes from: the named schedule that it was made from, or "list
  // scheduling", and what was done to it.
  std::string origin;
  // Seconds; no schedule of these stages is shorter, with any memory. It need
  // not be in reach.
  double lower_bound = 0;
};

// The shortest schedule that is found among those in which no rank holds more
// than it may, with stage s on rank rank_of_stage[s]:
//
// 1. The named schedules (named.h) with this placement, and breadth_first().
//    One that takes too much memory gets recomputes for as few micro-batches
//    as it needs.
// 2. List scheduling (Graham, 1966): whenever a rank is free it does what is
//    first by some rule, of what can begin. Our rules keep micro-batches some
//    time apart, as do the repeated blocks of Controllable Memory (arXiv
//    2405.15362), and fill gaps with Ws and recomputes, as in Zero Bubble
//    (arXiv 2401.10241), whose authors also have an integer program for this.
// 3. Local search from the best of these: actions of a critical path are moved
//    on their rank, put in two parts or together, recomputed or not.
//
// So it is never longer than a named schedule that fits, and there is always
// a result if any schedule fits. It is not always the shortest that there is.
//
// The same arguments give the same result. Pairs of a forward and a backward
// are made only if costs.overlap is not 0.
//
// Errors: std::invalid_argument for a rank that cannot do with what it may
// hold, with the least that it needs; for a placement that leaves out a rank;
// unless there is a stage and a micro-batch; and for costs that are missing or
// cannot be. Costs without a backward, or both its parts, are for inference,
// where forward_only() leaves nothing to be found.
// Complexity: O(budget * n) for n actions. Threads: pure function.
AutomaticSchedule automatic_schedule(const std::vector<int>& rank_of_stage,
                                     int microbatches, const Costs& costs,
                                     const AutomaticOptions& options = {});

}  // namespace gpipe
