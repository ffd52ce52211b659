// Which blocks of a chain are allowed, and the least limit with which there are
// enough. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/partition_sums.h"

namespace gpipe::balancing::detail {

// A block's cost, as counted by `sums`, is at most `limit`. `sums` must outlive
// the cap.
struct Cap {
  const Sums* sums;
  int64_t limit;
};

// Several caps that each block respects. Part of an allowed block is allowed.
using Caps = std::vector<Cap>;

// The last cut that an allowed block from `from` can reach. O(log n) a cap.
Cut reach(const Caps& caps, Cut from);

// The first cut from which an allowed block can reach `to`. O(log n) a cap.
Cut back(const Caps& caps, Cut to);

// The least limit for blocks as counted by `sums` with which a cutting into
// `partitions` allowed blocks exists when the `others` hold as well; -1 if
// there is none. `sums` and those of the others are of the same layers.
//
// Complexity: O(n + i p log n): i <= 62 rounds of a bisection over a greedy
// probe, each of which ends at the cost of a block, so that 10 to 30 are usual
// (Pinar and Aykanat, "Fast optimal load balancing algorithms for 1D
// partitioning", J. Parallel Distrib. Comput. 64, 2004, "exact bisection").
int64_t smallest_limit(const Sums& sums, int64_t partitions,
                       const Caps& others = {});

}  // namespace gpipe::balancing::detail
