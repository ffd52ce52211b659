#include "balancing/solver/caps.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace gpipe::balancing::detail {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

Cut reach(const Cap& cap, Cut from) {
  const Sums& sums = *cap.sums;
  const auto end =
      std::upper_bound(sums.begin() + from, sums.end(), sums[from] + cap.limit);
  return end - sums.begin() - 1;
}

// The result of a greedy probe. Taking as many layers as fit, block by block,
// reaches at least as far as any other choice. Blocks that are then left empty
// are harmless: a fuller one can be split.
struct Probe {
  bool enough = false;
  int64_t largest = 0;    // cost of the largest block
  int64_t next = kNever;  // no limit below this one reaches farther
};

Probe probe(const Cap& cap, const Caps& others, int64_t partitions) {
  const Sums& sums = *cap.sums;
  const Cut end = std::ssize(sums) - 1;
  Probe result;
  Cut at = 0;
  for (int64_t k = 0; k < partitions && at < end; ++k) {
    const Cut start = at;
    at = reach(cap, start);
    const Cut most = std::min(end, detail::reach(others, start));
    if (most <= at) {
      // A larger limit would not have extended this block.
      at = most;
    } else {
      result.next = std::min(result.next, sums[at + 1] - sums[start]);
    }
    result.largest = std::max(result.largest, sums[at] - sums[start]);
  }
  result.enough = at == end;
  return result;
}

}  // namespace

Cut reach(const Caps& caps, Cut from) {
  Cut least = std::numeric_limits<Cut>::max();
  for (const Cap& cap : caps) least = std::min(least, reach(cap, from));
  return least;
}

Cut back(const Caps& caps, Cut to) {
  Cut largest = 0;
  for (const Cap& cap : caps) {
    const Sums& sums = *cap.sums;
    const auto from =
        std::lower_bound(sums.begin(), sums.begin() + to, sums[to] - cap.limit);
    largest = std::max(largest, from - sums.begin());
  }
  return largest;
}

int64_t smallest_limit(const Sums& sums, int64_t partitions,
                       const Caps& others) {
  int64_t largest = 0;
  for (std::size_t k = 1; k < sums.size(); ++k) {
    largest = std::max(largest, sums[k] - sums[k - 1]);
  }
  int64_t low = std::max(largest, sums.back() / partitions);
  // A greedy block ends when the next layer, of at most `largest`, does not
  // fit. So it is fuller than an equal share, and this limit is always enough
  // ...
  int64_t high = sums.back() / partitions + largest;
  if (!others.empty()) {
    // ... unless the other caps end a block earlier.
    const Probe widest = probe({&sums, sums.back()}, others, partitions);
    if (!widest.enough) return -1;
    high = std::max(low, widest.largest);
  }
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    const Probe tried = probe({&sums, middle}, others, partitions);
    if (tried.enough) {
      high = std::max(low, tried.largest);
    } else {
      low = tried.next;
    }
  }
  return low;
}

}  // namespace gpipe::balancing::detail
