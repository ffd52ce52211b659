// The schedule of inference.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Stage s runs on rank s: F of micro-batches 0..m-1, and no backward. With
// equal stages all is done after (m + n - 1) f.
//
// std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule forward_only(int stages, int microbatches);

}  // namespace gpipe
