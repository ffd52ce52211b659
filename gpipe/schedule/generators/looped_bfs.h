// Breadth-first pipeline parallelism (arXiv 2211.05953): GPipe's schedule with
// several stages per rank.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns the breadth-first schedule for p `ranks`, m `microbatches` and v
// `stages_per_rank`. Rank r has the stages r, r + p, ..., r + (v - 1) p. It
// runs F of micro-batches 0..m-1 on its first stage, then on its next stage,
// and so on. Then it runs B of m-1..0, from its last stage to its first.
//
// With equal stages (f and b are the seconds of one stage) the makespan is
// ((v - 1) max(m, p) + m + p - 1)(f + b). If m >= p, each rank is idle for
// (p - 1)(f + b) of it. A latency c between ranks adds 2(pv - 1) c if m <= p.
// If m > p, it adds only 2(p - 1) c as long as pc <= (m - p) min(f, b). All mv
// micro-batches (each on one stage) of a rank are in flight together.
//
// Throws std::invalid_argument unless all three are at least 1.
Schedule looped_bfs(int ranks, int microbatches, int stages_per_rank);

}  // namespace gpipe
