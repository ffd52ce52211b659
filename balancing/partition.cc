#include "balancing/partition.h"

#include <algorithm>
#include <numeric>

#include "balancing/solver/cap.h"
#include "balancing/solver/evening.h"
#include "balancing/solver/sums.h"

namespace gpipe::balancing {

std::vector<int64_t> balance_cost(const std::vector<double>& costs,
                                  int64_t partitions) {
  detail::check_partitions(std::ssize(costs), partitions);
  detail::check_costs(costs);
  const detail::Sums sums = detail::prefix_sums(costs);
  const int64_t limit = detail::smallest_limit(sums, partitions);
  return detail::most_even({&sums, limit}, partitions);
}

double bottleneck(const std::vector<double>& costs,
                  const std::vector<int64_t>& lengths) {
  detail::check_balance(lengths, std::ssize(costs));
  double largest = 0;
  auto at = costs.begin();
  for (const int64_t length : lengths) {
    largest = std::max(largest, std::accumulate(at, at + length, 0.0));
    at += length;
  }
  return largest;
}

}  // namespace gpipe::balancing
