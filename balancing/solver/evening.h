// The most even of the cuts that respect a cap. Internal to balancing. No
// LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/solver/cap.h"

namespace gpipe::balancing::detail {

// The largest number of pairs, of a block and a possible end of it, for which
// most_even() searches exactly. Each thousand pairs takes about 20
// microseconds. The number of pairs never exceeds layers times partitions.
constexpr int64_t kEveningWork = 32768;

// Returns the layers per block, each > 0, of the most even cut into
// `partitions` blocks that respects the cap. Such a cut must exist. A cut with
// the smaller sum of squared block costs is more even; if these are equal, the
// one with the smaller sum of squared block lengths. Among equally even cuts,
// the one with the longest last block is returned, then with the longest block
// before it, and so on.
//
// If there are more than kEveningWork pairs to search, the result respects the
// cap but is only approximately even. Block after block takes its share of the
// rest, as nearly as the cap and one layer per block allow. In this
// computation a layer larger than a share counts as one share, since otherwise
// the blocks around it would be too small, and a layer that costs nothing
// counts a little.
//
// Complexity: O(p n log n) time and O(p n) memory up to kEveningWork, by
// dynamic programming; O(n + p log n) beyond.
std::vector<int64_t> most_even(const Cap& cap, int64_t partitions);

}  // namespace gpipe::balancing::detail
