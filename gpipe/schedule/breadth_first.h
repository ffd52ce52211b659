// All forwards, then all backwards, wherever the stages are.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Stage s is on rank rank_of_stage[s]. A rank runs F of micro-batches 0..m-1 of
// its first stage, then of the next one; then B of m-1..0 from its last stage
// to its first. With one stage per rank this is GPipe's schedule; with the
// stages dealt out in rounds it is looped_bfs().
//
// std::invalid_argument unless there is a stage and a micro-batch, and every
// rank from 0 to the largest has a stage.
Schedule breadth_first(const std::vector<int>& rank_of_stage, int microbatches);

}  // namespace gpipe
