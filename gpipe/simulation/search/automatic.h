// A search for a good schedule for given costs: for stages that do not take
// equally long, for slow links, and for ranks with little memory.
#pragma once

#include <string>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/search/options.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// The result of automatic_schedule().
struct AutomaticSchedule {
  Schedule schedule;
  // The result of simulate(). If the costs have only I and W, a B takes as long
  // as both.
  Timeline timeline;
  // A text for people that says how the schedule was found: the named schedule
  // that it was made from, or "list scheduling", and the changes made to it.
  std::string origin;
  // Seconds. No schedule of these stages is shorter, with any memory limit. The
  // shortest possible schedule may be longer.
  double lower_bound = 0;
};

// Returns the shortest schedule found in which no rank holds more bytes than
// `options` allow. Stage s is on rank `rank_of_stage[s]`. The candidates:
//
// 1. The named schedules (named.h) with this placement, and breadth_first(). If
//    one takes too much memory, as few micro-batches as necessary are
//    recomputed, or some of them are offloaded.
// 2. List scheduling (Graham, 1966): whenever a rank is free, it runs one of
//    the actions that can begin, chosen by a priority rule. Our rules keep
//    micro-batches some time apart, like the repeated blocks of Controllable
//    Memory (arXiv 2405.15362). They fill gaps with Ws and recomputes, like
//    Zero Bubble (arXiv 2401.10241), whose authors also have an integer program
//    for this.
// 3. Local search from the best of these. It moves actions of a critical path
//    on their rank, splits and merges backwards, and adds and removes
//    recomputes and offloads.
//
// So the result is never longer than a named schedule that fits, and there is a
// result if any schedule without offload fits. It is not always the shortest
// possible one. With offload (AutomaticOptions::offload) it is never longer
// than without, and may fit where no other schedule fits.
//
// The same arguments give the same result. A forward and a backward are paired
// only if `costs.overlap` is not 0.
//
// Throws std::invalid_argument if a rank cannot run any schedule within its
// memory limit (the text gives the bytes that it needs); if a rank below the
// largest one has no stage; if there is no stage or no micro-batch; if the
// options are invalid; and if costs are missing or invalid. Costs must have B,
// or both I and W: for inference, use forward_only().
// Complexity: O(budget * n) for n actions. Threads: pure function.
AutomaticSchedule automatic_schedule(const std::vector<int>& rank_of_stage,
                                     int microbatches, const Costs& costs,
                                     const AutomaticOptions& options = {});

}  // namespace gpipe
