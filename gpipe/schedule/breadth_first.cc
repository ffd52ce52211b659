#include "gpipe/schedule/breadth_first.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule breadth_first(const std::vector<int>& rank_of_stage,
                       int microbatches) {
  const int stages = static_cast<int>(rank_of_stage.size());
  internal::check_sizes(stages, microbatches);
  for (int s = 0; s < stages; ++s) {
    if (rank_of_stage[s] >= 0 && rank_of_stage[s] < stages) continue;
    throw std::invalid_argument("stage " + std::to_string(s) + " is on rank " +
                                std::to_string(rank_of_stage[s]) +
                                ": number ranks from 0, each with a stage");
  }
  Schedule schedule;
  schedule.ranks.resize(
      1 + *std::max_element(rank_of_stage.begin(), rank_of_stage.end()));
  for (int s = 0; s < stages; ++s) {
    auto& actions = schedule.ranks[rank_of_stage[s]];
    for (int i = 0; i < microbatches; ++i) {
      actions.push_back({s, ActionKind::kForward, i});
    }
  }
  for (std::size_t r = 0; r < schedule.ranks.size(); ++r) {
    if (!schedule.ranks[r].empty()) continue;
    throw std::invalid_argument("rank " + std::to_string(r) +
                                " has no stage; leave no rank out");
  }
  for (int s = stages - 1; s >= 0; --s) {
    auto& actions = schedule.ranks[rank_of_stage[s]];
    for (int i = microbatches - 1; i >= 0; --i) {
      actions.push_back({s, ActionKind::kBackward, i});
    }
  }
  return schedule;
}

}  // namespace gpipe
