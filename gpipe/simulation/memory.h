// The bytes that each rank holds over time.
#pragma once

#include <cstddef>

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
// After I, `weight_activation_bytes` are held instead. A cell without a
// backward is held to the end, and a cell without a forward from the beginning,
// since actions that are not in the schedule count as done. If an action ends
// when another one starts, its memory is freed first. Actions of no duration
// take and free memory in the order of the schedule.
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

// The rule for the cells of some ranks.
class HeldRule {
 public:
  // `ranks`: lists of actions. Throws as ActionTable().
  template <typename Ranks>
  explicit HeldRule(const Ranks& ranks) : present_(ranks) {
    for (const auto& actions : ranks) {
      for (const Action& action : actions) present_[action] = 1;
    }
  }

  // Returns one more than the largest stage.
  std::size_t stages() const { return present_.stages(); }
  // Returns whether the cell of the action `cell` has an action of a kind.
  bool has(const Action& cell, ActionKind kind) const {
    return present_.get({cell.stage, kind, cell.microbatch}) != 0;
  }

  // Return what an action takes at its start, and what it frees at its end.
  HeldParts taken_by(const Action& action) const;
  HeldParts freed_by(const Action& action) const;

 private:
  ActionTable<char> present_;
};

}  // namespace internal
}  // namespace gpipe
