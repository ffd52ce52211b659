// The schedule of GPipe (arXiv 1811.06965): all forwards, then all backwards.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns GPipe's schedule. Stage s is on rank s. Each rank runs F of
// micro-batches 0..m-1, then B of m-1..0, where m is `microbatches`. Backwards
// run in reverse order, as in autograd. So the last micro-batch comes first,
// which is the one that keeps its graph if all others are checkpointed.
//
// With n equal stages, where F takes f and B takes b seconds, the makespan is
// (m + n - 1)(f + b). Each rank is idle for (n - 1)(f + b) of it.
//
// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule fill_drain(int stages, int microbatches);

}  // namespace gpipe
