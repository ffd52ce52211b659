#include "balancing/solver/cap.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace gpipe::balancing::detail {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// The result of a greedy probe. Taking as many layers as fit, block by block,
// reaches at least as far as any other choice. Blocks that are then left empty
// are harmless: a fuller one can be split.
struct Probe {
  bool enough = false;
  int64_t largest = 0;    // cost of the largest block
  int64_t next = kNever;  // no limit below this one reaches farther
};

Probe probe(const Cap& cap, int64_t partitions) {
  const Sums& sums = *cap.sums;
  const Cut end = std::ssize(sums) - 1;
  Probe result;
  Cut at = 0;
  for (int64_t k = 0; k < partitions && at < end; ++k) {
    const Cut start = at;
    at = reach(cap, start);
    if (at < end) {
      result.next = std::min(result.next, sums[at + 1] - sums[start]);
    }
    result.largest = std::max(result.largest, sums[at] - sums[start]);
  }
  result.enough = at == end;
  return result;
}

}  // namespace

Cut reach(const Cap& cap, Cut from) {
  const Sums& sums = *cap.sums;
  const auto end =
      std::upper_bound(sums.begin() + from, sums.end(), sums[from] + cap.limit);
  return end - sums.begin() - 1;
}

Cut back(const Cap& cap, Cut to) {
  const Sums& sums = *cap.sums;
  return std::lower_bound(sums.begin(), sums.begin() + to,
                          sums[to] - cap.limit) -
         sums.begin();
}

int64_t smallest_limit(const Sums& sums, int64_t partitions) {
  int64_t largest = 0;
  for (std::size_t k = 1; k < sums.size(); ++k) {
    largest = std::max(largest, sums[k] - sums[k - 1]);
  }
  int64_t low = std::max(largest, sums.back() / partitions);
  // A greedy block ends when the next layer, of at most `largest`, does not
  // fit. So it is fuller than an equal share, and this limit is always enough.
  int64_t high = sums.back() / partitions + largest;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const Probe tried = probe({&sums, middle}, partitions);
    if (tried.enough) {
      high = std::max(low, tried.largest);
    } else {
      low = tried.next;
    }
  }
  return low;
}

}  // namespace gpipe::balancing::detail
