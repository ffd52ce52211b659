// Costs of layers as integers, and their prefix sums, for the exact partition
// algorithms. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::balancing::detail {

// A place between layers: c layers are before cut c. Block (a, b) holds the
// layers between the cuts a and b.
using Cut = int64_t;

// Prefix sums: sums[c] is the cost of the layers before cut c; sums[0] is 0.
using Sums = std::vector<int64_t>;

// Returns the shift that turns costs into integers: cost * 2^shift, rounded. It
// is the largest shift with which all sums of all costs of the `lists` are
// below 2^62. So a cost is rounded to a multiple of at most n * 2^-60 of the
// largest of the n costs. Whole numbers are not rounded if n times the largest
// is below 2^60.
int common_shift(const std::vector<const std::vector<double>*>& lists);

// Returns the prefix sums of `costs`, which are finite and >= 0. O(n).
Sums prefix_sums(const std::vector<double>& costs, int shift);

// Throws std::invalid_argument, naming the layer, if a cost is negative,
// infinite or NaN. `what`: the word for the cost in the text, "cost" or
// "forward cost".
void check_costs(const std::vector<double>& costs, const std::string& what);

// Throws std::invalid_argument if `partitions` < 1 or if there are fewer layers
// than partitions.
void check_partitions(int64_t layers, int64_t partitions);

// Throws std::invalid_argument if `microbatches` < 1.
void check_microbatches(int64_t microbatches);

// Throws std::invalid_argument unless all numbers of `balance` are > 0 and
// their sum is `layers`.
void check_balance(const std::vector<int64_t>& balance, int64_t layers);

}  // namespace gpipe::balancing::detail
