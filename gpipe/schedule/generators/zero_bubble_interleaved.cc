#include "gpipe/schedule/generators/zero_bubble_interleaved.h"

#include "gpipe/schedule/generators/alternation.h"
#include "gpipe/schedule/generators/interleaved.h"
#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule zero_bubble_interleaved(int ranks, int microbatches,
                                 int stages_per_rank) {
  internal::check_sizes(ranks, microbatches, stages_per_rank);
  const int group = default_group(ranks, microbatches);
  return internal::alternate(
      {ranks, microbatches, stages_per_rank, group},
      [&](int rank) {
        return ranks - 1 - rank + (stages_per_rank - 1) * group;
      },
      [](int rank) { return rank; });
}

}  // namespace gpipe
