#include "balancing/solver/sums.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "gpipe/base/text.h"

namespace gpipe::balancing::detail {

using internal::refuse;

Sums prefix_sums(const std::vector<double>& costs) {
  double largest = 0;
  for (double cost : costs) largest = std::max(largest, cost);
  int largest_bits = 0, count_bits = 0;
  std::frexp(largest, &largest_bits);  // largest < 2^largest_bits
  std::frexp(static_cast<double>(costs.size()), &count_bits);
  const int shift = 62 - count_bits - largest_bits;
  Sums sums(1, 0);
  sums.reserve(costs.size() + 1);
  for (double cost : costs) {
    sums.push_back(sums.back() + std::llround(std::ldexp(cost, shift)));
  }
  return sums;
}

void check_costs(const std::vector<double>& costs) {
  for (std::size_t k = 0; k < costs.size(); ++k) {
    if (!std::isfinite(costs[k]) || costs[k] < 0) {
      refuse("the cost of layer ", k, " is ", costs[k],
             ": costs must be finite and not negative");
    }
  }
}

void check_partitions(int64_t layers, int64_t partitions) {
  if (partitions < 1) {
    refuse("cannot cut ", layers, " layers into ", partitions,
           " partitions: there must be at least 1");
  }
  if (layers < partitions) {
    refuse("cannot cut ", layers, " layers into ", partitions,
           " partitions: each needs a layer of its own");
  }
}

void check_balance(const std::vector<int64_t>& balance, int64_t layers) {
  int64_t left = layers;
  for (std::size_t j = 0; j < balance.size(); ++j) {
    if (balance[j] < 1) {
      refuse("partition ", j, " has ", balance[j],
             " layers: each needs a layer of its own");
    }
    // Subtracts instead of adding up, so that no list of numbers overflows.
    if (balance[j] > left) {
      refuse("the partitions have more than the ", layers,
             " layers that there are: partition ", j, " has ", balance[j],
             " where ", left, " are left");
    }
    left -= balance[j];
  }
  if (left > 0) {
    refuse("the partitions have ", layers - left, " layers in all, and not ",
           layers);
  }
}

}  // namespace gpipe::balancing::detail
