// When each action of a schedule starts and ends.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Seconds per micro-batch, one entry per stage, finite and >= 0. A list may be
// empty if the schedule has no such action.
struct Costs {
  std::vector<double> forward, backward, backward_input, backward_weight,
      recompute;
  // Of what goes from a stage to the next one, and of its gradient, where the
  // two are on different ranks. Copies run beside what is computed, and any
  // number of them beside each other.
  double latency = 0;
};

struct Span {
  Action action;
  double start = 0, end = 0;  // seconds from the beginning of the step
};

struct Timeline {
  // As Schedule::ranks.
  std::vector<std::vector<Span>> ranks;
  double makespan = 0;       // the end of the last action
  std::vector<double> idle;  // of each rank: makespan less what it works
  // Of each rank, most micro-batches (of a stage) at any one time of which the
  // forward has begun and the backward, with its weight part, has not ended.
  std::vector<int> peak_in_flight;
  // The part of all ranks' time that is idle, 0 to 1; 0 if nothing is done.
  double bubble_fraction = 0;
};

// Runs each rank's actions one after the other, each as soon as the one before
// and those that it needs (schedule/needs.h) have ended.
//
// Errors: std::invalid_argument for an action that comes twice, or that can
// never start, naming it; and for costs that are missing, negative, infinite or
// NaN, with their place.
// Complexity: O(n) for n actions. Threads: pure function.
Timeline simulate(const Schedule& schedule, const Costs& costs);

}  // namespace gpipe
