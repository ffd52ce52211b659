// Exact partition of a chain of layers. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe::balancing {

// Cuts a chain of layers into `partitions` blocks of consecutive layers so
// that the largest block costs as little as possible: a pipeline is as fast as
// its slowest partition. Returns the layers per block, each > 0, in order.
//
// `costs`: of each layer, >= 0, in any unit (seconds, bytes).
//
// Many cuts can have the same largest block. Of these the one with the
// smallest sum of squared block costs is returned, and then, for layers that
// cost nothing, with the smallest sum of squared block lengths: {1, 1, 1, 1, 1}
// into 3 gives blocks of 1, 2 and 2. Nothing else is left to chance: equal
// arguments give equal blocks, and later blocks get the larger share.
//
// Where more than 32,768 pairs of a block and a place where it may end are left
// once the largest block is known (so layers times partitions are more than
// that), the largest block is as small as ever, but the others are only about
// even: each takes its share of what is left, as nearly as a layer allows.
//
// The result is exact. Sums are made of integers: each cost is rounded to a
// multiple of a power of two of at most n * 2^-60 of the largest of the n
// costs, which is finer than the rounding of sums of doubles. (Whole numbers
// are not rounded at all as long as n times the largest is below 2^60.)
//
// Errors: std::invalid_argument for a negative, infinite or NaN cost, for
// partitions < 1, and for fewer layers than partitions.
// Complexity: O(n + 62 p log n) at worst for the largest block (bisection over
// a greedy probe: Pinar and Aykanat, "Fast optimal load balancing algorithms
// for 1D partitioning", J. Parallel Distrib. Comput. 64, 2004), and O(p n log
// n) time and O(p n) memory for the most even of the best, which the bound
// above keeps at some 2 ms. 100,000 layers into 1,024 take some 10 ms on one
// core (bazel run //balancing:partition_benchmark). Threads: pure function.
std::vector<int64_t> balance_cost(const std::vector<double>& costs,
                                  int64_t partitions);

// The largest block of a cut, which balance_cost makes as small as it can be.
// `lengths`: layers per block. Errors: std::invalid_argument for lengths that
// do not fit.
double bottleneck(const std::vector<double>& costs,
                  const std::vector<int64_t>& lengths);

}  // namespace gpipe::balancing
