#include "gpipe/schedule/breadth_first.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/base/text.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

// Returns the number of ranks if stage s is on rank `rank_of_stage[s]`. Throws
// std::invalid_argument if a rank between 0 and the largest one has no stage.
int count_ranks(const std::vector<int>& rank_of_stage) {
  int ranks = 0;
  std::vector<bool> has_stage(rank_of_stage.size());
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
    const int rank = rank_of_stage[s];
    if (rank < 0 || static_cast<std::size_t>(rank) >= has_stage.size()) {
      internal::refuse("stage ", s, " is on rank ", rank,
                       ": number ranks from 0, each with a stage");
    }
    has_stage[rank] = true;
    ranks = std::max(ranks, rank + 1);
  }
  const auto end = has_stage.begin() + ranks;
  const auto empty = std::find(has_stage.begin(), end, false);
  if (empty != end) {
    internal::refuse("rank ", empty - has_stage.begin(),
                     " has no stage; leave no rank out");
  }
  return ranks;
}

}  // namespace

Schedule breadth_first(const std::vector<int>& rank_of_stage,
                       int microbatches) {
  const int stages = static_cast<int>(rank_of_stage.size());
  internal::check_sizes(stages, microbatches);
  Schedule schedule;
  schedule.ranks.resize(count_ranks(rank_of_stage));
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

Schedule fill_drain(int stages, int microbatches) {
  return looped_bfs(stages, microbatches, /*stages_per_rank=*/1);
}

Schedule looped_bfs(int ranks, int microbatches, int stages_per_rank) {
  internal::check_sizes(ranks, microbatches, stages_per_rank);
  return breadth_first(
      place_stages(stages_per_rank * ranks, ranks, Placement::kLoop),
      microbatches);
}

Schedule forward_only(int stages, int microbatches) {
  return select(fill_drain(stages, microbatches), [](const Action& action) {
    return action.kind == ActionKind::kForward;
  });
}

}  // namespace gpipe
