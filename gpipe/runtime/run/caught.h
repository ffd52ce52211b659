// The Failure of an exception.
#pragma once

#include <cstdint>

#include "gpipe/failure.h"

namespace gpipe::internal {

// Returns the place of work on a whole mini-batch, which belongs to no cell.
Failure at_partition(int64_t partition, Phase phase);

// Returns `place` with the text of the exception that is being handled. If that
// is a c10::Error, adds the place to its text. Call inside a catch block.
Failure caught_at(Failure place);

}  // namespace gpipe::internal
