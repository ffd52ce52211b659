// The most even of the cuttings that respect caps. Internal to balancing.
// No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/partition_caps.h"

namespace gpipe::balancing::detail {

// What makes one of two cuttings the more even: the smaller sum of squared
// block costs, then the smaller sum of squared block lengths.
struct Unevenness {
  unsigned __int128 squared_costs = 0;  // < 2^124
  int64_t squared_lengths = 0;

  friend bool operator<(const Unevenness& a, const Unevenness& b) {
    return a.squared_costs != b.squared_costs
               ? a.squared_costs < b.squared_costs
               : a.squared_lengths < b.squared_lengths;
  }
  Unevenness plus_block(int64_t cost, int64_t length) const {
    const auto wide = static_cast<unsigned __int128>(cost);
    return {squared_costs + wide * wide, squared_lengths + length * length};
  }
};

// Whether of two cuttings `a` is the more even; or it is as even, and of the
// last blocks that differ it has the longer one.
bool is_more_even(const Unevenness& unevenness_a, const std::vector<int64_t>& a,
                  const Unevenness& unevenness_b,
                  const std::vector<int64_t>& b);

// Of one cutting. O(p).
Unevenness unevenness(const Sums& sums, const std::vector<int64_t>& lengths);

// Up to so many pairs of a block and a place where it may end are looked
// through for the most even cutting, at some 20 microseconds per thousand. Up
// to that many layers times partitions, there are never more.
constexpr int64_t kEveningWork = 32768;

// Layers per block, each > 0, of the most even cutting into `partitions` blocks
// that respect the caps; "even" is as `sums` counts. Such a cutting must exist.
// Of several the one whose last block is longest, and so on towards the front.
//
// If there are more than kEveningWork pairs to look through, it is a cutting
// that respects the caps and is about even: block after block takes its share
// of what is left, as nearly as the caps and a layer per block allow. A layer
// that is larger than a share counts no more than a share there, or the blocks
// around it would come out small; and one that costs nothing counts a little.
//
// Complexity: O(p n log n) time and O(p n) memory up to kEveningWork, by
// dynamic programming; O(n + p log n) beyond.
std::vector<int64_t> most_even(const Sums& sums, const Caps& caps,
                               int64_t partitions);

}  // namespace gpipe::balancing::detail
