// The limit of the blocks of a chain, and the smallest one that allows a cut.
// Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>

#include "balancing/solver/sums.h"

namespace gpipe::balancing::detail {

// An upper limit for the cost of a block, as counted by `sums`. `sums` must
// outlive the cap.
struct Cap {
  const Sums* sums;
  int64_t limit;
};

// Returns the last cut that an allowed block from `from` can reach. O(log n).
Cut reach(const Cap& cap, Cut from);

// Returns the first cut from which an allowed block can reach `to`. O(log n).
Cut back(const Cap& cap, Cut to);

// Returns the smallest limit for blocks, as counted by `sums`, with which a cut
// into `partitions` blocks exists.
//
// Complexity: O(n + i p log n), where i <= 62 is the number of rounds of a
// bisection over a greedy probe. Each round ends at the cost of a block, so i
// is usually 10 to 30 (Pinar and Aykanat, "Fast optimal load balancing
// algorithms for 1D partitioning", J. Parallel Distrib. Comput. 64, 2004,
// "exact bisection").
int64_t smallest_limit(const Sums& sums, int64_t partitions);

}  // namespace gpipe::balancing::detail
