// Names of the kinds of actions.
#pragma once

#include <array>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

constexpr std::array<ActionKind, 5> kAllKinds = {
    ActionKind::kForward, ActionKind::kRecompute, ActionKind::kBackward,
    ActionKind::kBackwardInput, ActionKind::kBackwardWeight};

// Returns "forward", "backward", "input backward", "weight backward" or
// "recompute".
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
      break;
  }
  return "recompute";
}

// Returns 'F', 'B', 'I', 'W' or 'R', as in to_string(Action).
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
      break;
  }
  return 'R';
}

}  // namespace gpipe
