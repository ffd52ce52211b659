// Costs of layers as integers, and their prefix sums, for the exact partition
// algorithms. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe::balancing::detail {

// A place between layers: c layers are before cut c. Block (a, b) holds the
// layers between the cuts a and b.
using Cut = int64_t;

// Prefix sums: sums[c] is the cost of the layers before cut c; sums[0] is 0.
using Sums = std::vector<int64_t>;

// Returns the prefix sums of `costs`, which are finite and >= 0: cost *
// 2^shift, rounded. The shift is the largest with which the sum of all costs is
// below 2^62. So a cost is rounded to a multiple of at most n * 2^-60 of the
// largest of the n costs. Whole numbers are not rounded if n times the largest
// is below 2^60. O(n).
Sums prefix_sums(const std::vector<double>& costs);

// Throws std::invalid_argument, naming the layer, if a cost is negative,
// infinite or NaN.
void check_costs(const std::vector<double>& costs);

// Throws std::invalid_argument if `partitions` < 1 or if there are fewer layers
// than partitions.
void check_partitions(int64_t layers, int64_t partitions);

// Throws std::invalid_argument unless all numbers of `balance` are > 0 and
// their sum is `layers`.
void check_balance(const std::vector<int64_t>& balance, int64_t layers);

}  // namespace gpipe::balancing::detail
