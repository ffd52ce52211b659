// Functions that make a schedule from another one.
#pragma once

#include <functional>

#include "gpipe/schedule/schedule.h"

namespace gpipe {

// The position of the recompute (R) of a checkpointed micro-batch. R must be
// between the forward and the backward of the same stage and micro-batch. It
// needs nothing else, so it can fill time in which the rank would wait. From R
// to the backward, the rank holds the whole graph of the micro-batch.
enum class RecomputePlacement {
  // Right before the backward. R fills the time in which the rank would wait
  // for the gradient. Each graph is freed before the next R, so a rank holds
  // one recomputed graph at a time, also while it waits.
  kBeforeBackward,
  // In one block with the backward (Action::fused_with_next), so R begins when
  // the gradient arrives. A rank holds the graph only while it computes. R
  // fills no idle time.
  kWithBackward,
  // As early as possible: right after the previous backward (or W) on the rank,
  // or after the micro-batch's own forward if that is later, and not inside a
  // block. R also fills idle time before the forwards in between. The rank
  // holds the recomputed graph together with the graphs of these forwards: one
  // more than with the other placements. R may delay one of these forwards, so
  // it saves time with some costs and loses time with others: compare by
  // simulate().
  kAhead,
};

// Returns `schedule` with an R for every backward (B or I) of each micro-batch
// for which `checkpointed` returns true. If a backward is in a block with a
// forward (as its first or second action), its R is right before that block
// even with kWithBackward, since a block has two actions. The O and L of a cell
// that gets an R are taken out, since its forward keeps only the input; call
// with_offload() last. The result is valid (validate.h) if `schedule` is valid
// and has no R.
Schedule with_recompute(
    const Schedule& schedule,
    const std::function<bool(int microbatch)>& checkpointed,
    RecomputePlacement placement = RecomputePlacement::kBeforeBackward);

// Does the same for chosen cells: `checkpointed` gets the stage and the
// micro-batch.
Schedule with_recompute(
    const Schedule& schedule,
    const std::function<bool(int stage, int microbatch)>& checkpointed,
    RecomputePlacement placement = RecomputePlacement::kBeforeBackward);

// Returns `schedule` with an O and an L for every chosen cell, that is, for
// every stage and micro-batch for which `which` returns true. O is right after
// the forward, or after the recompute if there is one. L is before the backward
// (B or I), with `ahead` actions of computation of its rank in between; 0 is
// right before the backward. If there are not so many after O, L is right after
// O. Neither is inside a block: O is after the block of its forward, and L is
// before a block that it would divide.
//
// A cell gets neither if it has an O or L already, if it has no forward or no
// backward, or if its recompute and backward are one block
// (RecomputePlacement::kWithBackward), since the rank holds nothing in between.
//
// From the end of O's copy to the beginning of L's, the rank does not hold what
// the cell keeps for its backward. With 1 for `ahead`, the copy back may take
// as long as one action without a delay. Larger numbers leave more time, and
// the rank holds as many more cells. The result is valid (validate.h) if
// `schedule` is valid.
//
// Throws std::invalid_argument if `ahead` is below 0. Complexity: O(n log n)
// for n actions.
Schedule with_offload(
    Schedule schedule,
    const std::function<bool(int stage, int microbatch)>& which, int ahead = 1);

// Returns a choice for with_offload(): true for the cells with at least
// `actions` actions of computation of their rank between the forward (or the
// recompute, if there is one) and the backward. For other cells both copies are
// waited for, and little is gained.
std::function<bool(int stage, int microbatch)> distant_cells(
    const Schedule& schedule, int actions);

// Returns the actions for which `keep` returns true, in their order. If only
// one action of a block is kept, it becomes a single action.
Schedule select(const Schedule& schedule,
                const std::function<bool(const Action&)>& keep);

}  // namespace gpipe
