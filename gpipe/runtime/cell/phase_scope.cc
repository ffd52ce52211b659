#include "gpipe/runtime/cell/phase_scope.h"

#include <memory>

#include "gpipe/libtorch/debug_info.h"

namespace gpipe::internal {

const PhaseInfo* current_phase() {
  return dynamic_cast<PhaseInfo*>(c10::ThreadLocalDebugInfo::get(kPhaseSlot));
}

int64_t microbatch_at_work() {
  const PhaseInfo* info = current_phase();
  return info ? info->microbatch.value_or(-1) : -1;
}

PhaseScope::PhaseScope(Phase phase, int64_t microbatch, std::string* layer)
    : guard_(kPhaseSlot, std::make_shared<PhaseInfo>(phase, microbatch, layer,
                                                     current_phase())) {}

PhaseScope::PhaseScope(Phase phase)
    : guard_(kPhaseSlot,
             std::make_shared<PhaseInfo>(
                 phase,
                 current_phase() ? current_phase()->microbatch : std::nullopt,
                 layer_at_work(), current_phase())) {}

std::string* layer_at_work() {
  const PhaseInfo* info = current_phase();
  return info ? info->layer : nullptr;
}

}  // namespace gpipe::internal
