#include "gpipe/schedule/looped_bfs.h"

#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule looped_bfs(int ranks, int microbatches, int stages_per_rank) {
  internal::check_sizes(ranks, microbatches, stages_per_rank);
  Schedule schedule;
  schedule.ranks.resize(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    auto& actions = schedule.ranks[rank];
    for (int chunk = 0; chunk < stages_per_rank; ++chunk) {
      for (int i = 0; i < microbatches; ++i) {
        actions.push_back({chunk * ranks + rank, ActionKind::kForward, i});
      }
    }
    for (int chunk = stages_per_rank - 1; chunk >= 0; --chunk) {
      for (int i = microbatches - 1; i >= 0; --i) {
        actions.push_back({chunk * ranks + rank, ActionKind::kBackward, i});
      }
    }
  }
  return schedule;
}

}  // namespace gpipe
