// List scheduling, which makes candidates for automatic_schedule().
// Internal: users include automatic.h.
#pragma once

#include <optional>

#include "gpipe/simulation/search/order.h"
#include "gpipe/simulation/search/problem.h"

namespace gpipe::internal {

// The rule by which a free rank chooses among the actions that can begin.
struct ListRule {
  // Defines a planned time for each action; the earliest one goes first. For
  // micro-batch 0 it is when the action would start if no other micro-batch
  // were in the pipeline. For micro-batch i it is later by i * `spacing` *
  // (seconds of work of the busiest rank for one micro-batch).
  //
  // With 0, forwards go first as long as there are any. With large values the
  // older micro-batch goes first, that is, its backward. In between, the order
  // is the repeated block of Controllable Memory (arXiv 2405.15362).
  double spacing = 1;
  // A W, or a recompute before the gradient arrives, blocks no other rank. It
  // fills a gap whose length is at least `filler` times its own.
  double filler = 1;
  // Whether the rank waits for an action with an earlier planned time, instead
  // of beginning one that is ready. It waits only if that action can start
  // before the first of the others would end.
  bool waits = false;
  bool splits = false;  // whether I and W replace B

  enum class Recompute {
    kNever,  // waits for memory instead
    kIfFull,
    kAlways,
  };
  Recompute recompute = Recompute::kNever;
};

// Returns the order that `rule` gives, or nullopt if that rule needs more
// memory than the limits. Each stage takes its micro-batches in ascending
// order.
//
// The algorithm does not get stuck, since it is a banker's algorithm (Dijkstra,
// 1965). A rank takes memory only if afterwards all its micro-batches in flight
// could still finish, one after the other, the oldest first. So the oldest
// micro-batch of all ranks can always continue to its end. Then it frees its
// memory, which the next one needs.
//
// Complexity: O(n * (stages per rank)) for n actions, times the number of
// micro-batches in flight if there is a limit.
std::optional<Order> list_schedule(const Problem& problem,
                                   const ListRule& rule);

}  // namespace gpipe::internal
