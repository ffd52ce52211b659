// What this thread does for a pipeline; gpipe/phase.h answers layers from it.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "gpipe/failure.h"
#include "gpipe/libtorch/debug_info.h"

namespace gpipe::internal {

// The work of a thread. `outer`: the phase of the layer that runs this
// pipeline, or null. The workers receive it with the caller's thread-local
// state.
struct PhaseInfo : c10::DebugInfoBase {
  PhaseInfo(Phase phase, std::optional<int64_t> microbatch, std::string* layer,
            const PhaseInfo* outer)
      : recomputing(phase == Phase::kRecomputing ||
                    (outer && outer->recomputing)),
        checkpointing(!recomputing && (phase == Phase::kCheckpointing ||
                                       (outer && outer->checkpointing))),
        microbatch(microbatch),
        layer(layer) {}
  const bool recomputing, checkpointing;
  const std::optional<int64_t> microbatch;
  std::string* const layer;
};

// Returns the work of this thread; null outside of a pipeline.
inline const PhaseInfo* current_phase() {
  return dynamic_cast<PhaseInfo*>(c10::ThreadLocalDebugInfo::get(kPhaseSlot));
}

// Returns the micro-batch of the innermost PhaseScope; -1 if there is none.
inline int64_t microbatch_at_work() {
  const PhaseInfo* info = current_phase();
  return info ? info->microbatch.value_or(-1) : -1;
}

// Returns the name of the layer at work in the cell of the innermost
// PhaseScope; null outside of cells. A recompute inside a backward writes the
// name of its layer there before it lets an exception through.
inline std::string* layer_at_work() {
  const PhaseInfo* info = current_phase();
  return info ? info->layer : nullptr;
}

// Sets the work of this thread while in scope.
class PhaseScope {
 public:
  // `layer`: the name of the cell's layer at work, see layer_at_work().
  PhaseScope(Phase phase, std::optional<int64_t> microbatch,
             std::string* layer = nullptr)
      : guard_(kPhaseSlot, std::make_shared<PhaseInfo>(phase, microbatch, layer,
                                                       current_phase())) {}
  // Keeps the micro-batch and the layer of the scope around this one.
  explicit PhaseScope(Phase phase)
      : PhaseScope(phase,
                   current_phase() ? current_phase()->microbatch : std::nullopt,
                   layer_at_work()) {}
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace gpipe::internal
