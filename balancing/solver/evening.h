// The most even of the cuts that respect caps. Internal to balancing. No
// LibTorch.
#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "balancing/solver/caps.h"

namespace gpipe::balancing::detail {

// The measure of how uneven a cut is. The cut with the smaller sum of squared
// block costs is more even; if these are equal, the one with the smaller sum of
// squared block lengths.
struct Unevenness {
  unsigned __int128 squared_costs = 0;  // < 2^124
  int64_t squared_lengths = 0;

  friend auto operator<=>(const Unevenness&, const Unevenness&) = default;
  Unevenness plus_block(int64_t cost, int64_t length) const {
    const auto wide = static_cast<unsigned __int128>(cost);
    return {squared_costs + wide * wide, squared_lengths + length * length};
  }
};

// Returns whether `a` is the more even of two cuts. If both are equally even,
// returns whether `a` has the longer block at the last place where they differ.
bool is_more_even(const Unevenness& unevenness_a, const std::vector<int64_t>& a,
                  const Unevenness& unevenness_b,
                  const std::vector<int64_t>& b);

// Returns the unevenness of one cut. O(p).
Unevenness unevenness(const Sums& sums, const std::vector<int64_t>& lengths);

// The largest number of pairs, of a block and a possible end of it, for which
// most_even() searches exactly. Each thousand pairs takes about 20
// microseconds. The number of pairs never exceeds layers times partitions.
constexpr int64_t kEveningWork = 32768;

// Returns the layers per block, each > 0, of the most even cut into
// `partitions` blocks that respects the caps; "even" is measured by `sums`.
// Such a cut must exist. Among equally even cuts, the one with the longest last
// block is returned, then with the longest block before it, and so on.
//
// If there are more than kEveningWork pairs to search, the result respects the
// caps but is only approximately even. Block after block takes its share of the
// rest, as nearly as the caps and one layer per block allow. In this
// computation a layer larger than a share counts as one share, since otherwise
// the blocks around it would be too small, and a layer that costs nothing
// counts a little.
//
// Complexity: O(p n log n) time and O(p n) memory up to kEveningWork, by
// dynamic programming; O(n + p log n) beyond.
std::vector<int64_t> most_even(const Sums& sums, const Caps& caps,
                               int64_t partitions);

}  // namespace gpipe::balancing::detail
