// Schedules made from schedules.
#pragma once

#include <functional>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// Where the recompute (R) of a checkpointed micro-batch goes. It has to be
// between the forward and the backward of the same stage and micro-batch, and
// needs nothing else, so it may fill time in which the rank would wait. From
// its R to its backward, a micro-batch holds a graph in full.
enum class RecomputePlacement {
  // Right before its backward: fills the time in which the rank would wait for
  // the gradient. Each graph is used up before the next R, so a rank holds one
  // at a time, but may hold it for as long as it waits.
  kBeforeBackward,
  // In one block with its backward (Action::with_next): begins when the
  // gradient is there. A rank holds a graph only while it works on it, and
  // saves no time.
  kWithBackward,
  // Right after the backward (or W) that comes before its own on the rank, or
  // after its own forward if that is later, and after the block that this one
  // is in: fills the time before forwards in between, too. The graph is held
  // beside those of these forwards: one more than with the others. It may keep
  // one of these forwards waiting, so it gains time with some costs and loses
  // some with others: see simulate().
  kAhead,
};

// Adds an R for every backward (B or I) of a micro-batch that is
// `checkpointed`. A backward that is in a block with a forward, be it the first
// or the second of the two, has its R right before that block even with
// kWithBackward, since a block has two actions. So what is valid (validate.h)
// stays valid, if it had no R before.
Schedule with_recompute(
    const Schedule& schedule,
    const std::function<bool(int microbatch)>& checkpointed,
    RecomputePlacement placement = RecomputePlacement::kBeforeBackward);

// Only the actions of which `keep` is true, in their order. What is left of a
// block when one of its actions is not kept is no block.
Schedule select(const Schedule& schedule,
                const std::function<bool(const Action&)>& keep);

}  // namespace gpipe
