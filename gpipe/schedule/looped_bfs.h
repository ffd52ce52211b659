// Breadth-first pipeline parallelism (arXiv 2211.05953): GPipe with several
// stages per rank.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Rank r of p has the stages r, r + p, ..., r + (v - 1) p: F of micro-batches
// 0..m-1 on each, then from the last stage B of m-1..0 on each.
//
// With equal stages (f and b of one stage) all is done after
// ((v - 1) max(m, p) + m + p - 1)(f + b); if m >= p, a rank is idle for
// (p - 1)(f + b) of it. A latency c between ranks adds 2(pv - 1) c if m <= p;
// if m > p, it adds only 2(p - 1) c while pc <= (m - p) min(f, b). All mv
// micro-batches of a rank's stages are in flight.
//
// std::invalid_argument unless all three are at least 1.
Schedule looped_bfs(int ranks, int microbatches, int stages_per_rank);

}  // namespace gpipe
