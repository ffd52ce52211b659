#include "gpipe/schedule/generators/breadth_first.h"

#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule breadth_first(const std::vector<int>& rank_of_stage,
                       int microbatches) {
  const int stages = static_cast<int>(rank_of_stage.size());
  internal::check_sizes(stages, microbatches);
  Schedule schedule;
  schedule.ranks.resize(internal::count_ranks(rank_of_stage));
  for (int s = 0; s < stages; ++s) {
    auto& actions = schedule.ranks[rank_of_stage[s]];
    for (int i = 0; i < microbatches; ++i) {
      actions.push_back({s, ActionKind::kForward, i});
    }
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
