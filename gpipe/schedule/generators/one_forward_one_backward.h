// 1F1B, also called PipeDream-Flush (arXiv 2006.09503) or DAPPLE's early
// backward (arXiv 2007.01045). It takes as long as GPipe's schedule, but a rank
// holds no more micro-batches than it needs.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns 1F1B for n `stages` and m `microbatches`. Stage s is on rank s. The
// rank runs min(m, n - 1 - s) forwards, then alternates one forward and one
// backward, then runs the remaining backwards. Both take micro-batches in
// ascending order.
//
// With equal stages, where F takes f and B takes b seconds, the makespan is
// (m + n - 1)(f + b). Each rank is idle for (n - 1)(f + b) of it. At most
// min(m, n - s) micro-batches are in flight on rank s. A latency c between
// ranks adds 2c (k - floor(k / n)) for k = m + n - 2: in the steady state, a
// rank waits for two copies per micro-batch.
//
// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule one_forward_one_backward(int stages, int microbatches);

// Returns 1F1B with min(m, 2(n - 1 - s)) forwards in the warm-up, which is
// DAPPLE's second policy. While the copy of one micro-batch is under way, a
// rank computes an earlier one. At most min(m, 2(n - 1 - s) + 1) micro-batches
// are in flight on rank s. The makespan is that of 1F1B. A latency c adds only
// 2(n - 1) c, as for GPipe, as long as 2c <= f + b.
//
// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule eager_one_forward_one_backward(int stages, int microbatches);

}  // namespace gpipe
