#include "gpipe/runtime/phase.h"

#include <memory>

namespace gpipe {
namespace {

// LibTorch hands this kind of information over to the threads of the autograd
// engine, which run the backward of operators on an accelerator. The kind is
// one that LibTorch itself has no use for.
constexpr auto kKind = c10::DebugInfoKind::PRODUCER_INFO;

struct PhaseInfo : c10::DebugInfoBase {
  PhaseInfo(Phase phase, int64_t microbatch)
      : phase(phase), microbatch(microbatch) {}
  const Phase phase;
  const int64_t microbatch;
};

const PhaseInfo* here() {
  return dynamic_cast<PhaseInfo*>(c10::ThreadLocalDebugInfo::get(kKind));
}

bool is(Phase phase) {
  const PhaseInfo* info = here();
  return info && info->phase == phase;
}

}  // namespace

bool is_checkpointing() { return is(Phase::kCheckpointing); }
bool is_recomputing() { return is(Phase::kRecomputing); }

std::optional<int64_t> current_microbatch() {
  const PhaseInfo* info = here();
  return info ? std::make_optional(info->microbatch) : std::nullopt;
}

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
    case Phase::kScatter:
      return "scatter";
    case Phase::kGather:
      return "gather";
    case Phase::kGradients:
      return "gradients";
  }
  return "unknown phase";
}

PhaseScope::PhaseScope(Phase phase, int64_t microbatch)
    : guard_(kKind, std::make_shared<PhaseInfo>(phase, microbatch)) {}

}  // namespace gpipe
