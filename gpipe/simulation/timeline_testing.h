// Timelines and costs for several tests.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/schedule/schedule.h"
#include "gpipe/schedule/text.h"
#include "gpipe/simulation/bottlenecks.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Returns the action that a text such as "0F0" names.
inline Action act(const char* text) {
  return parse_schedule(text).ranks.at(0).at(0);
}

// Returns an action that is a block with the next one of its rank.
inline Action paired(Action action) {
  action.fused_with_next = true;
  return action;
}

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
  Schedule schedule =
      parse_schedule("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n");
  schedule.ranks.resize(ranks);
  return schedule;
}

// Returns the timeline of rank 1 of two. Rank 0 is in another process. The
// input is copied from 2 to 3 s, and the forward begins at 3.5 s.
inline Timeline second_of_two() {
  Timeline timeline = timeline_of({{{act("1F0"), 3.5, 4}}});
  timeline.first_rank = 1;
  timeline.transfers = {{act("0F0"), 0, 1, 2, 3, 3, 64}};
  timeline.memory = {{{0, 10}}};
  timeline.peak_bytes = {10};
  return timeline;
}

// Returns the steps of the critical path: "0F0 0-1" for an action and its
// seconds, "0F0 0>1 1-2" for a copy from rank 0 to rank 1.
inline std::vector<std::string> steps(const Timeline& timeline) {
  std::vector<std::string> result;
  for (const CriticalStep& step : critical_path(timeline)) {
    std::ostringstream text;
    text << to_string(step.action);
    if (step.is_transfer()) text << " " << step.from << ">" << step.to;
    text << " " << step.start << "-" << step.end;
    result.push_back(text.str());
  }
  return result;
}

// Returns the times and bytes of points.
inline std::vector<std::pair<double, double>> pairs(
    const std::vector<MemoryPoint>& points) {
  std::vector<std::pair<double, double>> result;
  for (const MemoryPoint& point : points) {
    result.emplace_back(point.time, point.bytes);
  }
  return result;
}

}  // namespace gpipe
