// The smallest limits of memory with which a cut exists. Internal to balancing.
// No LibTorch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace gpipe::balancing::detail {

// Returns the smallest number f with f * limit >= bytes in double arithmetic;
// infinity if there is none.
double factor_for(double bytes, double limit);

// Returns the minimum, over all cuts of `layers` into `partitions`, of the
// largest demand of a block. `begin(j, first)`: returns the empty block of
// partition j at layer `first`, with extend() and last(). `demand(j, block)`:
// must not decrease as the block grows.
// Complexity: O(p n^2) calls.
template <typename Begin, typename Demand>
double least_largest(int64_t layers, int64_t partitions, const Begin& begin,
                     const Demand& demand) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> least(layers + 1, kInfinity);  // by cut
  least[0] = 0;
  for (int64_t j = 0; j < partitions; ++j) {
    std::vector<double> next(layers + 1, kInfinity);
    const int64_t latest = layers - (partitions - j - 1);
    for (int64_t first = j; first < latest; ++first) {
      if (std::isinf(least[first])) continue;
      for (auto block = begin(j, first); block.last() < latest;) {
        block.extend();
        double& there = next[block.last()];
        there = std::min(there, std::max(least[first], demand(j, block)));
      }
    }
    least = std::move(next);
  }
  return least[layers];
}

}  // namespace gpipe::balancing::detail
