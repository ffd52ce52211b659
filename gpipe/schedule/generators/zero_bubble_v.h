// The schedule ZB-V of "Pipeline Parallelism with Controllable Memory" (arXiv
// 2405.15362): backwards in two parts, and two stages per rank, placed in a V.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns ZB-V for p `ranks` and m `microbatches`. Rank r has the stages r and
// 2p - 1 - r. So rank p - 1 has the two middle stages, with no copy between
// them, and rank 0 has the loss.
//
// With equal stages (f, i and w are the seconds of one stage), f <= i, w <= i
// and m >= 2p - 1, the makespan is
// 2m(f + i + w) + (p - 1) max(f, i, 2(i - w)). If f = i = w, no rank is idle
// between its first action and its last. At most 2p micro-batches (each on one
// stage) are in flight on any rank, which is the memory of 1F1B's first rank.
//
// With fewer than 2p - 1 micro-batches the order is the one for 2p - 1, without
// the missing micro-batches.
//
// Throws std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule zero_bubble_v(int ranks, int microbatches);

}  // namespace gpipe
