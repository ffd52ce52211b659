// ZB-H1 of "Zero Bubble Pipeline Parallelism" (arXiv 2401.10241) with several
// stages per rank, in the order of torch.distributed.pipelining.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns the schedule for p `ranks`, m `microbatches` and v `stages_per_rank`.
// Stages and groups of g micro-batches are those of interleaved() with
// default_group(). Rank r runs p - 1 - r + (v - 1) g forwards (or all, if there
// are fewer), then alternates F and I, then runs the remaining Is. The oldest
// pending W follows each I, except the first r ones. The remaining Ws come
// last.
//
// With equal stages (f, i and w are the seconds of one stage) and m >= p, the
// makespan is mv(f + i + w) + (p - 1) max(f, i, f + i - w). At most
// (v - 1) g + p micro-batches (each on one stage) are in flight on any rank,
// which is vp if p divides m. Any m works. With v = 1 this is zero_bubble_h1().
//
// Throws std::invalid_argument unless all three are at least 1.
Schedule zero_bubble_interleaved(int ranks, int microbatches,
                                 int stages_per_rank);

}  // namespace gpipe
