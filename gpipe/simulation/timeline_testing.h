// Timelines and costs for several tests.
#pragma once

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Returns costs with the same seconds for all stages. A recompute takes as long
// as a forward, both halves of a split backward half of it.
inline Costs equal_costs(int stages, double forward, double backward) {
  Costs costs;
  costs.forward.assign(stages, forward);
  costs.backward.assign(stages, backward);
  costs.backward_input.assign(stages, backward / 2);
  costs.backward_weight.assign(stages, backward / 2);
  costs.recompute.assign(stages, forward);
  return costs;
}

// Returns costs of 1 s for a forward of each stage, and 2 s for a backward.
inline Costs costs_of(int stages) { return equal_costs(stages, 1, 2); }

// Returns a schedule of two micro-batches in which rank 0 runs 0F1 and 0B0 as a
// pair. With two ranks, the pair waits for rank 1.
inline Schedule schedule_with_a_pair(int ranks) {
  Schedule schedule = {{{{0, ActionKind::kForward, 0},
                         {0, ActionKind::kForward, 1, /*fused_with_next=*/true},
                         {0, ActionKind::kBackward, 0},
                         {0, ActionKind::kBackward, 1}},
                        {{1, ActionKind::kForward, 0},
                         {1, ActionKind::kBackward, 0},
                         {1, ActionKind::kForward, 1},
                         {1, ActionKind::kBackward, 1}}}};
  schedule.ranks.resize(ranks);
  return schedule;
}

// Returns the timeline of rank 1 of two. Rank 0 is in another process. The
// input is copied from 2 to 3 s, and the forward begins at 3.5 s.
inline Timeline second_of_two() {
  Timeline timeline = timeline_of({{{{1, ActionKind::kForward, 0}, 3.5, 4}}});
  timeline.first_rank = 1;
  timeline.transfers = {{{0, ActionKind::kForward, 0}, 0, 1, 2, 3, 3, 64}};
  timeline.memory = {{{0, 10}}};
  timeline.peak_bytes = {10};
  return timeline;
}

}  // namespace gpipe
