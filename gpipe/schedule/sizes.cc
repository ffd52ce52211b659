#include "gpipe/schedule/sizes.h"

#include <algorithm>
#include <cstddef>

#include "gpipe/base/text.h"

namespace gpipe::internal {

void check_sizes(int ranks, int microbatches, int stages_per_rank) {
  if (ranks >= 1 && microbatches >= 1 && stages_per_rank >= 1) return;
  refuse(
      "a schedule needs at least 1 rank, 1 stage per rank and 1 micro-batch "
      "(ranks: ",
      ranks, ", stages per rank: ", stages_per_rank,
      ", micro-batches: ", microbatches, ")");
}

int count_ranks(const std::vector<int>& rank_of_stage) {
  int ranks = 0;
  std::vector<bool> has_stage(rank_of_stage.size());
  for (std::size_t s = 0; s < rank_of_stage.size(); ++s) {
    const int rank = rank_of_stage[s];
    if (rank < 0 || static_cast<std::size_t>(rank) >= has_stage.size()) {
      refuse("stage ", s, " is on rank ", rank,
             ": number ranks from 0, each with a stage");
    }
    has_stage[rank] = true;
    ranks = std::max(ranks, rank + 1);
  }
  const auto end = has_stage.begin() + ranks;
  const auto empty = std::find(has_stage.begin(), end, false);
  if (empty != end) {
    refuse("rank ", empty - has_stage.begin(),
           " has no stage; leave no rank out");
  }
  return ranks;
}

}  // namespace gpipe::internal
