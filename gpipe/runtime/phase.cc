#include "gpipe/runtime/phase.h"

namespace gpipe {
namespace {

thread_local std::optional<Phase> phase_here;
thread_local std::optional<int64_t> microbatch_here;

}  // namespace

bool is_checkpointing() { return phase_here == Phase::kCheckpointing; }
bool is_recomputing() { return phase_here == Phase::kRecomputing; }
std::optional<int64_t> current_microbatch() { return microbatch_here; }

const char* to_string(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kCheckpointing:
      return "forward (checkpointed)";
    case Phase::kRecomputing:
      return "recompute";
    case Phase::kBackward:
      return "backward";
  }
  return "unknown phase";
}

PhaseScope::PhaseScope(Phase phase, int64_t microbatch)
    : outer_phase_(phase_here), outer_microbatch_(microbatch_here) {
  phase_here = phase;
  microbatch_here = microbatch;
}

PhaseScope::~PhaseScope() {
  phase_here = outer_phase_;
  microbatch_here = outer_microbatch_;
}

}  // namespace gpipe
