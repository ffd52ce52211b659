// Costs of layers as integers, and their sums: what the exact partition
// algorithms compute with. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::balancing::detail {

// "Cut c" is a place between layers: c layers are before it. Block (a, b)
// holds the layers between the cuts a and b.
using Cut = int64_t;

// sums[c]: cost of the layers before cut c. sums[0] is 0.
using Sums = std::vector<int64_t>;

// How a list of costs becomes integers: cost * 2^shift, rounded. The shift is
// the largest with which all sums of all costs of the `lists` stay below 2^62.
// So a cost is rounded to a multiple of at most n * 2^-60 of the largest of the
// n costs, and whole numbers are not rounded as long as n times the largest is
// below 2^60.
int common_shift(const std::vector<const std::vector<double>*>& lists);

// O(n). `costs` are finite and >= 0.
Sums prefix_sums(const std::vector<double>& costs, int shift);

// Errors: std::invalid_argument, which names the layer, for a cost that is
// negative, infinite or NaN. `what` is "cost" or "forward", as the text says
// it.
void check_costs(const std::vector<double>& costs, const std::string& what);

// Errors: std::invalid_argument for partitions < 1 and for fewer layers than
// partitions.
void check_partitions(int64_t layers, int64_t partitions);

// Errors: std::invalid_argument unless `balance` is a list of numbers > 0 of
// which the sum is `layers`.
void check_balance(const std::vector<int64_t>& balance, int64_t layers);

}  // namespace gpipe::balancing::detail
