#include "gpipe/schedule/sizes.h"

#include <stdexcept>
#include <string>

namespace gpipe::internal {

void check_sizes(int ranks, int microbatches, int stages_per_rank) {
  if (ranks >= 1 && microbatches >= 1 && stages_per_rank >= 1) return;
  throw std::invalid_argument(
      "a schedule needs at least 1 rank, 1 stage per rank and 1 micro-batch "
      "(ranks: " +
      std::to_string(ranks) +
      ", stages per rank: " + std::to_string(stages_per_rank) +
      ", micro-batches: " + std::to_string(microbatches) + ")");
}

}  // namespace gpipe::internal
