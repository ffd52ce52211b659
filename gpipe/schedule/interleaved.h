// Interleaved 1F1B (arXiv 2104.04473): several stages per rank, so that the
// pipeline is filled in smaller steps.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Rank r of p has the stages r, r + p, ..., r + (v - 1) p. It takes the
// micro-batches in groups of g: a whole group on its first stage, then on the
// next, and so on, then the next group; backwards alike, from the last stage.
// It does 2(p - 1 - r) + (v - 1) g forwards (all, if there are fewer), then a
// forward and a backward in turn, then the backwards that are left.
//
// With equal stages (f and b of one stage) and m >= p, all is done after
// (mv + p - 1)(f + b), of which a rank is idle for (p - 1)(f + b): 1/v of what
// it is with one stage per rank. Rank r has at most
// min(mv, 2(p - 1 - r) + (v - 1) g + 1) micro-batches (of a stage) in flight. A
// short latency c between ranks adds 2(pv - 1) c if p divides m and g = p.
//
// A group has at least p micro-batches, or all, if there are fewer: of smaller
// ones the first rank would be done before the last one has begun. The last
// group, with m mod g of them, may be no exception: ranks would wait, some of
// them for each other. group = 0 takes default_group(), so any m works.
//
// std::invalid_argument unless ranks, microbatches and stages_per_rank are at
// least 1 and the group is as above.
Schedule interleaved(int ranks, int microbatches, int stages_per_rank,
                     int group = 0);

// The smallest group, which is the one that takes the least memory, with which
// no rank has to wait: `ranks` if it divides `microbatches`; all micro-batches
// if they are fewer than ranks. Where torch.distributed.pipelining takes these
// numbers it is the same.
//
// std::invalid_argument unless both are at least 1.
int default_group(int ranks, int microbatches);

}  // namespace gpipe
