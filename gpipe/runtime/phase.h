// What this thread is doing for a pipeline, for layers that want to know.
#pragma once

#include <cstdint>
#include <optional>

namespace gpipe {

// True in the first forward of a checkpointed cell, whose graph is not kept.
// False everywhere else, also in the forward of a cell that is not
// checkpointed.
bool is_checkpointing();

// True in the second forward of a checkpointed cell, during backward. A layer
// that counts its calls skips the count then.
bool is_recomputing();

// Index of the micro-batch in work on this thread, from 0; none outside of a
// pipeline.
std::optional<int64_t> current_microbatch();

enum class Phase { kForward, kCheckpointing, kRecomputing, kBackward };

// "forward", "forward (checkpointed)", "recompute", "backward".
const char* to_string(Phase phase);

// Sets what the functions above answer on this thread while in scope.
class PhaseScope {
 public:
  PhaseScope(Phase phase, int64_t microbatch);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  std::optional<Phase> outer_phase_;
  std::optional<int64_t> outer_microbatch_;
};

}  // namespace gpipe
