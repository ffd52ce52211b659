// Names of the kinds of actions.
#pragma once

#include <array>

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
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kBackwardInput:
      return "input backward";
    case ActionKind::kBackwardWeight:
      return "weight backward";
    case ActionKind::kRecompute:
      return "recompute";
    case ActionKind::kOffload:
      return "copy to the host";
    case ActionKind::kReload:
      break;
  }
  return "copy from the host";
}

// Returns 'F', 'B', 'I', 'W', 'R', 'O' or 'L', as in to_string(Action).
inline char letter_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return 'F';
    case ActionKind::kBackward:
      return 'B';
    case ActionKind::kBackwardInput:
      return 'I';
    case ActionKind::kBackwardWeight:
      return 'W';
    case ActionKind::kRecompute:
      return 'R';
    case ActionKind::kOffload:
      return 'O';
    case ActionKind::kReload:
      break;
  }
  return 'L';
}

}  // namespace gpipe
