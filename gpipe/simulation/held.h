// The rule of memory: what a cell (a stage and a micro-batch) holds from which
// action to which. Internal: users include memory.h.
#pragma once

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Parts of what a cell holds, each 1, 0 or -1. Costs (costs.h) has the bytes of
// each part.
struct HeldParts {
  int input = 0;       // Costs::input_bytes
  int activation = 0;  // Costs::activation_bytes
  int weight = 0;      // Costs::weight_activation_bytes
};

// Returns what an action takes at its start. `recomputed`: whether its cell has
// an R.
inline HeldParts taken_by(ActionKind kind, bool recomputed) {
  if (kind == ActionKind::kForward && recomputed) return {.input = 1};
  const bool takes =
      kind == ActionKind::kForward || kind == ActionKind::kRecompute;
  return {.activation = takes ? 1 : 0};
}

// Returns what an action frees at its end. `splits`: whether its cell has a W,
// which needs a part of the activations.
inline HeldParts freed_by(ActionKind kind, bool recomputed, bool splits) {
  const int input = recomputed ? 1 : 0;
  switch (kind) {
    case ActionKind::kBackwardInput:
      if (splits) return {.activation = 1, .weight = -1};
      [[fallthrough]];
    case ActionKind::kBackward:
      return {.input = input, .activation = 1};
    case ActionKind::kBackwardWeight:
      return {.input = input, .weight = 1};
    default:
      return {};
  }
}

}  // namespace gpipe::internal
