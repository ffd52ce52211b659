// What an action of a schedule waits for.
#pragma once

#include <array>
#include <cstddef>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// A few actions, without memory of their own from the heap: schedules of
// millions of actions are gone through one action after the other.
class Needs {
 public:
  void add(int stage, Kind kind, int microbatch) {
    actions_[size_++] = {stage, kind, microbatch};
  }
  const Action* begin() const { return actions_.data(); }
  const Action* end() const { return actions_.data() + size_; }

 private:
  std::array<Action, 4> actions_;
  std::size_t size_ = 0;
};

// The actions that must have ended before `action` may start, if they are in
// the schedule: F of the stage before, B (or I) of the stage after, its own F
// and recompute and, for W, its own I. Two actions in one block
// (Action::with_next) wait for what either of them needs from others.
Needs needs(const Action& action);

}  // namespace gpipe
