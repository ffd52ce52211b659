// A check of the sizes that the schedule generators take.
#pragma once

#include <vector>

namespace gpipe::internal {

// Throws std::invalid_argument, with the numbers, unless each is at least 1.
void check_sizes(int ranks, int microbatches, int stages_per_rank = 1);

// Returns the number of ranks if stage s is on rank `rank_of_stage[s]`. Throws
// std::invalid_argument if a rank between 0 and the largest one has no stage.
int count_ranks(const std::vector<int>& rank_of_stage);

}  // namespace gpipe::internal
