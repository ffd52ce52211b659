// Exact partition of a chain of layers. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe::balancing {

// Cuts a chain of layers into `partitions` blocks of consecutive layers so that
// the largest block costs as little as possible: a pipeline is as fast as its
// slowest partition. Returns the layers per block, each > 0, in order.
//
// `costs`: one per layer, >= 0, in any unit (seconds, bytes).
//
// Many cuts can have the same largest block. Among these, the cut with the
// smallest sum of squared block costs is returned. If these are equal, too,
// which happens with layers that cost nothing, the smallest sum of squared
// block lengths decides: {1, 1, 1, 1, 1} into 3 gives blocks of 1, 2 and 2. The
// result depends on the arguments only, and later blocks get the larger share.
//
// There is an exception for large inputs. Once the largest block is known, the
// pairs of a block and a possible end of it are counted. If more than 32,768
// remain (which needs layers times partitions above that), the largest block is
// still minimal, but the others are only approximately even: each takes its
// share of the rest, as nearly as whole layers allow.
//
// The result is exact. Costs are summed as integers: each cost is rounded to a
// multiple of a power of two that is at most n * 2^-60 of the largest of the n
// costs. That is finer than the rounding of sums of doubles. Whole numbers are
// not rounded if n times the largest is below 2^60.
//
// Throws std::invalid_argument if a cost is negative, infinite or NaN, if
// `partitions` < 1, or if there are fewer layers than partitions.
// Complexity: O(n + 62 p log n) in the worst case for the largest block
// (bisection over a greedy probe: Pinar and Aykanat, "Fast optimal load
// balancing algorithms for 1D partitioning", J. Parallel Distrib. Comput. 64,
// 2004). The most even of the best cuts takes O(p n log n) time and O(p n)
// memory, which the bound above limits to about 2 ms. 100,000 layers into 1,024
// take about 10 ms on one core (bazel run
// //balancing:partition_benchmark). Threads: pure function.
std::vector<int64_t> balance_cost(const std::vector<double>& costs,
                                  int64_t partitions);

// Returns the cost of the largest block of a cut, which balance_cost()
// minimizes. `lengths`: layers per block.
//
// Throws std::invalid_argument if `lengths` does not match `costs`.
double bottleneck(const std::vector<double>& costs,
                  const std::vector<int64_t>& lengths);

namespace detail {
// Throws std::invalid_argument if `partitions` < 1 or if there are fewer layers
// than partitions.
void check_partitions(int64_t partitions, int64_t layers);

// Throws std::invalid_argument unless all numbers of `balance` are > 0 and
// their sum is `layers`.
void check_balance(const std::vector<int64_t>& balance, int64_t layers);
}  // namespace detail

}  // namespace gpipe::balancing
