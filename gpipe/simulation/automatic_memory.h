// The least memory that a rank can do with.
// Not for users: automatic.h is.
#pragma once

#include <vector>

#include "gpipe/simulation/automatic_order.h"
#include "gpipe/simulation/automatic_problem.h"

namespace gpipe {

// Which stages of a rank to recompute so that one micro-batch alone, from its
// first forward to its last backward, fits into `bytes`.
struct Lean {
  bool fits = false;
  std::vector<char> recomputed;  // of each of the rank's stages, upwards
  // If it does not fit, the next larger number of bytes that may change this.
  double next = 0;
};
Lean lean(const Problem& problem, int rank, double bytes);

// The fewest bytes with which any schedule can be run on the rank. When the
// forward of its last stage begins, no other stage of the rank has given back
// what it holds of that micro-batch; so every schedule holds as much at least
// as one_at_a_time() with the best choice of recomputes.
double least_bytes(const Problem& problem, int rank);

// Every micro-batch goes all the way before the next one begins. Within the
// limits if that is possible, else with the least that each rank needs.
Order one_at_a_time(const Problem& problem);

}  // namespace gpipe
