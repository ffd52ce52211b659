// The least memory with which a rank can run a schedule.
// Internal: users include automatic.h.
#pragma once

#include <vector>

#include "gpipe/simulation/search/order.h"
#include "gpipe/simulation/search/problem.h"

namespace gpipe::internal {

// The result of lean().
struct Lean {
  bool fits = false;
  // For each of the rank's stages, in ascending order: whether to recompute it.
  std::vector<char> recomputed;
  // If it does not fit: the next larger number of bytes with which it may fit.
  double next = 0;
};

// Chooses the stages of a rank to recompute so that a single micro-batch, from
// its first forward to its last backward, fits into `bytes`.
Lean lean(const Problem& problem, int rank, double bytes);

// Returns the fewest bytes with which a rank can run any schedule. When the
// forward of the rank's last stage begins, its other stages still hold all
// their memory for that micro-batch. So every schedule holds at least as much
// as one_at_a_time() with the best choice of recomputes.
double least_bytes(const Problem& problem, int rank);

// Returns the order in which each micro-batch finishes before the next one
// begins. It is within the memory limits if possible; otherwise each rank needs
// its least_bytes().
Order one_at_a_time(const Problem& problem);

}  // namespace gpipe::internal
