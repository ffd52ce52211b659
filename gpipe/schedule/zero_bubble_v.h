// ZB-V of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362):
// backwards in two parts, and two stages per rank, placed in a V.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Rank r of p has the stages r and 2p - 1 - r, so that what goes through the
// model turns round on rank p - 1 without being sent, and rank 0 has the loss.
//
// With equal stages (times of one stage), f <= i, w <= i and m >= 2p - 1, all
// is done after 2m(f + i + w) + (p - 1) max(f, i, 2(i - w)): if all parts take
// as long, no rank is idle from its first action to its last. At most 2p
// micro-batches (of a stage) are in flight on any rank, which is the memory of
// 1F1B's first rank.
//
// With fewer than 2p - 1 micro-batches the order is that of 2p - 1, without
// those that are not there.
//
// std::invalid_argument unless ranks >= 1 and microbatches >= 1.
Schedule zero_bubble_v(int ranks, int microbatches);

}  // namespace gpipe
