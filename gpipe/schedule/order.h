// Which actions an action waits for, and one order of all actions of a
// schedule, over all ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// A list of at most 5 actions that uses no heap memory. Loops over schedules
// with millions of actions make one for each action.
class Needs {
 public:
  void add(int stage, ActionKind kind, int microbatch) {
    actions_[size_++] = {stage, kind, microbatch};
  }
  const Action* begin() const { return actions_.data(); }
  const Action* end() const { return actions_.data() + size_; }

 private:
  std::array<Action, 5> actions_;
  std::size_t size_ = 0;
};

// Returns the actions that must have ended before `action` may start. An action
// that is not in the schedule counts as ended. All are of the same micro-batch:
//
//   F     F of the previous stage
//   R     F of the same stage
//   O     F and R of the same stage
//   L     O of the same stage
//   B, I  F, R and L of the same stage, B or I of the next stage
//   W     I of the same stage
//
// Each action of a block (Action::fused_with_next) also waits for what the
// other one needs from outside the block; the result does not include that.
Needs needs(const Action& action);

}  // namespace gpipe::internal

namespace gpipe {

// Returns the tick result[r][k] at which action k of rank r starts. Every
// action, also O and L, takes one tick of a common clock and starts as early as
// it can: after the previous action of its rank and after all actions that it
// needs (internal::needs()). A needed action that is not in the schedule counts
// as done. A block (Action::fused_with_next) starts when the needs of all its
// actions are done, and its actions have consecutive ticks.
//
// If rank r gets stuck, result[r] is shorter than ranks[r]: the action
// ranks[r][result[r].size()] can never start, or it begins a block that can
// never start. If an action occurs several times, others wait for the first
// one that runs.
//
// Complexity: linear. Threads: pure function.
std::vector<std::vector<int64_t>> start_ticks(const Schedule& schedule);

// Returns the position result[r][k] of action k of rank r among all actions:
// start_ticks() * (number of ranks) + r. Positions have gaps. They increase
// along a rank, and an action comes after all actions that it needs.
//
// If several actions fail, this order defines which one is the first. For
// fill-drain the forward of micro-batch i on stage j has tick i + j, as in
// torchgpipe.
//
// Throws std::invalid_argument if an action can never start; the text names one
// such action. Complexity: linear. Threads: pure function.
std::vector<std::vector<int64_t>> clock_order(const Schedule& schedule);

}  // namespace gpipe
