#include "gpipe/schedule/generators/looped_bfs.h"

#include "gpipe/schedule/generators/breadth_first.h"
#include "gpipe/schedule/placement.h"
#include "gpipe/schedule/sizes.h"

namespace gpipe {

Schedule looped_bfs(int ranks, int microbatches, int stages_per_rank) {
  internal::check_sizes(ranks, microbatches, stages_per_rank);
  return breadth_first(
      place_stages(stages_per_rank * ranks, ranks, Placement::kLoop),
      microbatches);
}

}  // namespace gpipe
