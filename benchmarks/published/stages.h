// Simulations of equal stages.
#pragma once

#include <algorithm>

#include "gpipe/schedule.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// The seconds of the actions of one stage, and of a copy between ranks.
struct StageTimes {
  double forward = 1, backward_input = 1, backward_weight = 1, latency = 0;
};

// Returns the costs of `stages` equal stages. A recompute takes as long as a
// forward.
inline Costs costs_of(const StageTimes& times, int stages) {
  Costs costs;
  costs.forward.assign(stages, times.forward);
  costs.backward_input.assign(stages, times.backward_input);
  costs.backward_weight.assign(stages, times.backward_weight);
  costs.backward.assign(stages, times.backward_input + times.backward_weight);
  costs.recompute.assign(stages, times.forward);
  costs.latency = times.latency;
  return costs;
}

// Returns the longest time between the first start and the last end of a rank,
// which Zero Bubble calls the cost of a schedule. The makespan also has the
// time before the first start.
inline double longest_rank(const Timeline& timeline) {
  double longest = 0;
  for (const auto& spans : timeline.ranks) {
    double end = 0;
    for (const Span& span : spans) end = std::max(end, span.end);
    if (!spans.empty()) longest = std::max(longest, end - spans[0].start);
  }
  return longest;
}

}  // namespace gpipe::benchmarks
