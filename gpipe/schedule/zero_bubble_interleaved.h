// H1 of "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241) with several
// stages per rank, as torch.distributed.pipelining orders it.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Placement and groups are those of interleaved() with default_group(). Rank r
// of p does p - 1 - r + (v - 1) g forwards (all, if there are fewer), then F
// and I in turn, then the Is that are left; a W after each I but the first r,
// the oldest first; then the Ws that are left.
//
// With equal stages (times of one stage) and m >= p, all is done after
// mv(f + i + w) + (p - 1) max(f, i, f + i - w), and at most (v - 1) g + p
// micro-batches (of a stage) are in flight on any rank: vp if p divides m. Any
// m works; with v = 1 this is zero_bubble_h1().
//
// std::invalid_argument unless all three are at least 1.
Schedule zero_bubble_interleaved(int ranks, int microbatches,
                                 int stages_per_rank);

}  // namespace gpipe
