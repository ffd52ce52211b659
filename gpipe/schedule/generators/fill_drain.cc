#include "gpipe/schedule/generators/fill_drain.h"

#include "gpipe/schedule/generators/looped_bfs.h"

namespace gpipe {

Schedule fill_drain(int stages, int microbatches) {
  return looped_bfs(stages, microbatches, /*stages_per_rank=*/1);
}

}  // namespace gpipe
