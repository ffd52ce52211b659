// All forwards, then all backwards, for any placement of the stages.
#pragma once

#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns the schedule in which every rank runs all its forwards, then all its
// backwards. Stage s is on rank `rank_of_stage[s]`; m is `microbatches`.
//
// A rank runs F of micro-batches 0..m-1 on its first stage, then on its next
// stage, and so on. Then it runs B of micro-batches m-1..0, from its last stage
// to its first. With one stage per rank this is GPipe's schedule
// (fill_drain()). With stage s on rank s modulo p it is looped_bfs().
//
// Throws std::invalid_argument if there is no stage or no micro-batch, or if a
// rank between 0 and the largest one has no stage.
Schedule breadth_first(const std::vector<int>& rank_of_stage, int microbatches);

}  // namespace gpipe
