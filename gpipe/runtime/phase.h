// What this thread is doing for a pipeline, for layers that want to know.
//
// Also the threads of the autograd engine that run a backward for a worker, as
// they do for what is on an accelerator.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <optional>

namespace gpipe {

// True in the first forward of a checkpointed cell, whose graph is not kept.
// False everywhere else, also in the forward of a cell that is not
// checkpointed.
bool is_checkpointing();

// True in the second forward of a checkpointed cell, during backward. A layer
// that counts its calls skips the count then.
//
// In a pipeline that a layer of another one runs, the other one's cell counts
// as well: a forward that comes again for either is a second one.
bool is_recomputing();

// Index of the micro-batch in work on this thread, from 0; none outside of a
// pipeline.
std::optional<int64_t> current_microbatch();

// What is done with a micro-batch: a forward that keeps its graph, one that
// does not, the one that makes up for it, or the backward; or with all of them.
enum class Phase {
  kForward,
  kCheckpointing,
  kRecomputing,
  kBackward,
  // Of a whole mini-batch, on the caller's thread.
  kScatter,    // before the first partition
  kGather,     // after the last one
  kGradients,  // of the outputs before the backwards; of all after them
};

// "forward", "forward (checkpointed)", "recompute", "backward"; "scatter",
// "gather", "gradients".
const char* to_string(Phase phase);

// Sets what the functions above answer on this thread while in scope.
class PhaseScope {
 public:
  PhaseScope(Phase phase, int64_t microbatch);
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace gpipe
