// A check of the sizes that the schedule generators take.
#pragma once

namespace gpipe::internal {

// Throws std::invalid_argument, with the numbers, unless each is at least 1.
void check_sizes(int ranks, int microbatches, int stages_per_rank = 1);

}  // namespace gpipe::internal
