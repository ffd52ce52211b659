// Interleaved 1F1B (arXiv 2104.04473): 1F1B with several stages per rank, which
// shortens the warm-up and the drain.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns interleaved 1F1B for p `ranks`, m `microbatches`, v `stages_per_rank`
// and groups of g micro-batches.
//
// Rank r has the stages r, r + p, ..., r + (v - 1) p. It runs the forwards of
// one group on its first stage, then of the same group on its next stage, and
// so on; then the next group. Backwards take the same groups, from the rank's
// last stage to its first. The rank runs 2(p - 1 - r) + (v - 1) g forwards (or
// all, if there are fewer), then alternates one forward and one backward, then
// runs the remaining backwards.
//
// With equal stages (f and b are the seconds of one stage) and m >= p, the
// makespan is (mv + p - 1)(f + b). Each rank is idle for (p - 1)(f + b) of it:
// 1/v of the idle time with one stage per rank. At most
// min(mv, 2(p - 1 - r) + (v - 1) g + 1) micro-batches (each on one stage) are
// in flight on rank r. A short latency c between ranks adds 2(pv - 1) c if p
// divides m and g = p.
//
// `group`: g, or 0 for default_group(), which works for any m. A group, also
// the last one with m mod g micro-batches, must have at least p micro-batches,
// or be the only one. If a group were smaller, the first rank would finish it
// before the last rank begins it. If only the last group were smaller, ranks
// would wait, and some would wait for each other.
//
// Throws std::invalid_argument unless `ranks`, `microbatches` and
// `stages_per_rank` are at least 1, and `group` is 0 or follows the rule above.
Schedule interleaved(int ranks, int microbatches, int stages_per_rank,
                     int group = 0);

// Returns the smallest group with which no rank has to wait; smaller groups
// take less memory. This is `ranks` if it divides `microbatches`, and
// `microbatches` if there are fewer of them than ranks. The result is that of
// torch.distributed.pipelining for all numbers that torch accepts.
//
// Throws std::invalid_argument unless both are at least 1.
int default_group(int ranks, int microbatches);

}  // namespace gpipe
