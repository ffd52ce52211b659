// Names of the kinds of actions.
#pragma once

#include <array>
#include <cstddef>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

constexpr std::array<ActionKind, internal::kActionKinds> kAllKinds = {
    ActionKind::kForward,        ActionKind::kRecompute,
    ActionKind::kBackward,       ActionKind::kBackwardInput,
    ActionKind::kBackwardWeight, ActionKind::kOffload,
    ActionKind::kReload};

// Returns "forward", "backward", "input backward", "weight backward",
// "recompute", "copy to the host" or "copy from the host".
inline const char* to_string(ActionKind kind) {
  // In the order of ActionKind.
  constexpr std::array<const char*, internal::kActionKinds> kNames = {
      "forward",   "backward",         "input backward",    "weight backward",
      "recompute", "copy to the host", "copy from the host"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace gpipe
