// The bytes that each rank holds over time.
#pragma once

#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/costs.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Returns `timeline` with `memory` and `peak_bytes`, computed from the bytes in
// `costs`. The timeline may be simulated or measured. If all lists of bytes are
// empty, returns it unchanged.
//
// A rank holds the activations of a cell (stage and micro-batch) from the start
// of F to the end of B or W. If the cell has an R, F holds only the input, and
// the activations are held from the start of R. From the end of the copy of an
// O to the start of the copy of its L, `offload_bytes` of them are not held.
// After I, only `weight_activation_bytes` are held. A cell without a backward
// is held to the end, and a cell without a forward from the beginning, since
// actions that are not in the schedule count as done. If an action ends when
// another one starts, its memory is freed first.
//
// Throws std::invalid_argument if costs are invalid (check_costs()), or if a
// list is not empty but lacks a stage. Complexity: O(n), O(n log n) if spans of
// a rank overlap or if it has copies to the host. Threads: pure function.
Timeline with_memory(Timeline timeline, const Costs& costs);

// ---- The rule of memory: what a cell (a stage and a micro-batch) holds from
// which action to which

namespace internal {

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

}  // namespace internal
}  // namespace gpipe
