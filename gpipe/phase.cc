#include "gpipe/phase.h"

#include <cstddef>
#include <memory>

#include "gpipe/libtorch/debug_info.h"

namespace gpipe {
namespace {

// The phase of a thread. `outer`: the phase of the layer that runs this
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

const PhaseInfo* here() {
  return dynamic_cast<PhaseInfo*>(
      c10::ThreadLocalDebugInfo::get(internal::kPhaseSlot));
}

}  // namespace

bool is_checkpointing() {
  const PhaseInfo* info = here();
  return info && info->checkpointing;
}

bool is_recomputing() {
  const PhaseInfo* info = here();
  return info && info->recomputing;
}

std::optional<int64_t> current_microbatch() {
  const PhaseInfo* info = here();
  return info ? info->microbatch : std::nullopt;
}

const char* to_string(Phase phase) {
  // In the order of Phase.
  static constexpr const char* kNames[] = {
      "forward",   "forward (checkpointed)",
      "recompute", "backward",
      "offload",   "reload",
      "scatter",   "gather",
      "gradients"};
  return kNames[static_cast<std::size_t>(phase)];
}

internal::PhaseScope::PhaseScope(Phase phase, int64_t microbatch,
                                 std::string* layer)
    : guard_(internal::kPhaseSlot,
             std::make_shared<PhaseInfo>(phase, microbatch, layer, here())) {}

internal::PhaseScope::PhaseScope(Phase phase)
    : guard_(internal::kPhaseSlot,
             std::make_shared<PhaseInfo>(phase, current_microbatch(),
                                         layer_at_work(), here())) {}

std::string* internal::layer_at_work() {
  const PhaseInfo* info = here();
  return info ? info->layer : nullptr;
}

}  // namespace gpipe
