// The work that this thread does for a pipeline; for layers that need to know.
//
// On accelerators the answers also hold on the autograd engine's threads that
// run a backward for a worker.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>
#include <string>

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

// The work on a micro-batch, or (last three) on a whole mini-batch.
enum class Phase {
  kForward,        // keeps its graph
  kCheckpointing,  // forward without keeping the graph
  kRecomputing,    // second forward of a checkpointed cell
  kBackward,
  kOffload,  // copy of what the backward needs to the host
  kReload,   // copy back
  // The next three run on the caller's thread.
  kScatter,    // split of the input, before the first partition
  kGather,     // concatenation of the outputs, after the last one
  kGradients,  // work on gradients before and after the backwards
};

// Returns "forward", "forward (checkpointed)", "recompute", "backward",
// "offload", "reload", "scatter", "gather" or "gradients".
const char* to_string(Phase phase);

namespace internal {

// Sets the answers of the functions above on this thread while in scope.
class PhaseScope {
 public:
  // `layer`: the name of the cell's layer at work, see layer_at_work().
  PhaseScope(Phase phase, int64_t microbatch, std::string* layer = nullptr);
  // Keeps the micro-batch and the layer of the scope around this one.
  explicit PhaseScope(Phase phase);
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  c10::DebugInfoGuard guard_;
};

// Returns the name of the layer at work in the cell of the innermost
// PhaseScope; null outside of cells. A recompute inside a backward writes the
// name of its layer there before it lets an exception through.
std::string* layer_at_work();

}  // namespace internal

}  // namespace gpipe
