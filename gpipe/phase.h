// The work that this thread does for a pipeline; for layers that need to know.
//
// On accelerators the answers also hold on the autograd engine's threads that
// run a backward for a worker.
#pragma once

#include <cstdint>
#include <optional>

namespace gpipe {

// Returns true in the first forward of a checkpointed cell, whose graph is not
// kept, and in the first call of a function that checkpoint() calls
// (checkpoint.h). Returns false everywhere else, also in the forward of a cell
// that is not checkpointed, and wherever is_recomputing() returns true.
bool is_checkpointing();

// Returns true in the recompute of a checkpointed cell, and in the second call
// of a function that checkpoint() calls, during backward. A layer that counts
// its calls must not count then.
//
// If a layer of an outer pipeline runs an inner pipeline, the result is true if
// the inner or the outer cell recomputes. The same holds for checkpoint() in a
// cell, and for checkpoint() in a function that checkpoint() calls.
bool is_recomputing();

// Returns the index of the micro-batch that this thread works on, from 0;
// nullopt outside of a pipeline.
std::optional<int64_t> current_microbatch();

}  // namespace gpipe
