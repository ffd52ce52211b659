// The actions that an action of a schedule waits for.
#pragma once

#include <array>
#include <cstddef>

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
