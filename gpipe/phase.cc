#include "gpipe/phase.h"

#include "gpipe/runtime/cell/phase_scope.h"

namespace gpipe {

using internal::current_phase;
using internal::PhaseInfo;

bool is_checkpointing() {
  const PhaseInfo* info = current_phase();
  return info && info->checkpointing;
}

bool is_recomputing() {
  const PhaseInfo* info = current_phase();
  return info && info->recomputing;
}

std::optional<int64_t> current_microbatch() {
  const PhaseInfo* info = current_phase();
  return info ? info->microbatch : std::nullopt;
}

}  // namespace gpipe
