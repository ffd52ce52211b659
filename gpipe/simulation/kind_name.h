// Names of the kinds of actions.
#pragma once

#include <array>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

constexpr std::array<Kind, 5> kAllKinds = {
    Kind::kForward, Kind::kRecompute, Kind::kBackward, Kind::kBackwardInput,
    Kind::kBackwardWeight};

// Returns "forward", "backward", "input backward", "weight backward" or
// "recompute".
inline const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return "forward";
    case Kind::kBackward:
      return "backward";
    case Kind::kBackwardInput:
      return "input backward";
    case Kind::kBackwardWeight:
      return "weight backward";
    case Kind::kRecompute:
      break;
  }
  return "recompute";
}

// Returns 'F', 'B', 'I', 'W' or 'R', as in to_string(Action).
inline char letter_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return 'F';
    case Kind::kBackward:
      return 'B';
    case Kind::kBackwardInput:
      return 'I';
    case Kind::kBackwardWeight:
      return 'W';
    case Kind::kRecompute:
      break;
  }
  return 'R';
}

}  // namespace gpipe
