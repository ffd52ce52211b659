// The common part of 1F1B, interleaved 1F1B and the zero-bubble schedules made
// from them. A rank begins with some forwards (warm-up), then alternates one
// forward and one backward (steady state), and ends with the remaining
// backwards (drain). Used by the generators in this folder only.
#pragma once

#include <functional>

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// The stages of each rank, and the order of their forwards and backwards.
//
// Rank r has the stages r, r + ranks, r + 2 ranks, ... It takes micro-batches
// in groups of `group`. Forwards: one group on the rank's first stage, the same
// group on its next stage, and so on; then the next group. The last group may
// be smaller. Backwards: the same groups, from the rank's last stage to its
// first.
struct Loop {
  int ranks = 1;
  int microbatches = 1;
  int stages_per_rank = 1;
  int group = 1;
};

// A function that returns a number for each rank.
using PerRank = std::function<int(int rank)>;

// Returns a schedule in which rank r runs `warm_up(r)` forwards (or all of its
// forwards, if there are fewer), then pairs of a forward and a B, then the
// remaining Bs. With `lag` there are I instead of B: on rank r the oldest
// pending W follows each I, except the first `lag(r)` ones. The remaining Ws
// come last.
Schedule alternate(const Loop& loop, const PerRank& warm_up,
                   const PerRank& lag = nullptr);

}  // namespace gpipe::internal
