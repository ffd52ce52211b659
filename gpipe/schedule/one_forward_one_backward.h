// 1F1B, also called PipeDream-Flush (arXiv 2006.09503) or DAPPLE's early
// backward (arXiv 2007.01045): as long as GPipe's, but a rank holds no more
// micro-batches than it needs to.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Stage s of n runs on rank s: min(m, n - 1 - s) forwards; then a forward and a
// backward in turn; then the backwards that are left. Micro-batches go up in
// both.
//
// With equal stages all is done after (m + n - 1)(f + b), of which a rank is
// idle for (n - 1)(f + b). Rank s has at most min(m, n - s) micro-batches in
// flight. A latency c between ranks adds 2c (k - floor(k / n)) for
// k = m + n - 2: in the middle a rank waits for two copies per micro-batch.
//
// std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule one_forward_one_backward(int stages, int microbatches);

// With min(m, 2(n - 1 - s)) forwards first, so that a copy is under way while a
// rank works on what came before: DAPPLE's second policy. Rank s has at most
// min(m, 2(n - 1 - s) + 1) micro-batches in flight. The time is that of 1F1B,
// and a latency c adds only 2 (n - 1) c, as for GPipe, while 2c <= f + b.
//
// std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule eager_one_forward_one_backward(int stages, int microbatches);

}  // namespace gpipe
