// The schedule of inference.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Returns the schedule without backwards. Stage s is on rank s and runs F of
// micro-batches 0..m-1, where m is `microbatches`. With n equal stages, where F
// takes f seconds, the makespan is (m + n - 1) f.
//
// Throws std::invalid_argument unless stages >= 1 and microbatches >= 1.
Schedule forward_only(int stages, int microbatches);

}  // namespace gpipe
