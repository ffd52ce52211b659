// The schedule of GPipe (arXiv 1811.06965): all forwards, then all backwards.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Stage s runs on rank s: F of micro-batches 0..m-1, then B of m-1..0. The
// backwards go in reverse, as autograd would, so that the micro-batch that
// was computed last, and alone may have kept its graph, is used first.
//
// With equal stages all is done after (m + n - 1)(f + b), of which a rank is
// idle for (n - 1)(f + b).
//
// std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule fill_drain(int stages, int microbatches);

}  // namespace gpipe
