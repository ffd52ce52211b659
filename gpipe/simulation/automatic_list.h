// List scheduling: what automatic_schedule() begins with where no named
// schedule is good. Not for users: automatic.h is.
#pragma once

#include <optional>

#include "gpipe/simulation/automatic_order.h"
#include "gpipe/simulation/automatic_problem.h"

namespace gpipe {

// How a free rank chooses from what can begin.
struct ListRule {
  // A micro-batch that met no other one would be at each action at some time.
  // Micro-batch i has these times, later by i * spacing * the work of the
  // busiest rank for one micro-batch; what is first by them goes first. With 0
  // this is forwards first, as long as there are any; with more and more
  // spacing the older micro-batch goes first, that is its backward. In between
  // it is the repeated block of Controllable Memory (arXiv 2405.15362).
  double spacing = 1;
  // What nobody waits for, a W or a recompute that is early, fills a gap that
  // is at least `filler` times as long.
  double filler = 1;
  // Rather than begin at once with what is there, wait for what is earlier by
  // the times above, if it comes before the first of the others would end.
  bool waits = false;
  bool splits = false;  // I and W in place of B

  enum class Recompute {
    kNever,  // rather wait for memory
    kIfFull,
    kAlways,
  };
  Recompute recompute = Recompute::kNever;
};

// Each stage has its micro-batches in their order. None if that rule cannot do
// with the memory.
//
// It does not get stuck, since it is a banker (Dijkstra's algorithm, 1965): it
// only takes memory if on that rank afterwards all micro-batches that are under
// way could be finished, one after the other, the oldest first. The oldest one
// of all ranks may then always go on to its end; and when it is there, it has
// given back what it held, on which the next one counted.
//
// Complexity: O(n * (stages per rank)), times the micro-batches in flight if
// there is a limit.
std::optional<Order> list_schedule(const Problem& problem,
                                   const ListRule& rule);

}  // namespace gpipe
