#include "balancing/partition.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>
#include <stdexcept>

namespace gpipe::balancing {
namespace {

// "Cut c" is a place between layers: c layers are before it. Block (a, b)
// holds the layers between the cuts a and b.
using Cut = int64_t;

// sums[c]: cost of the layers before cut c, as integers below 2^62.
std::vector<int64_t> prefix_sums(const std::vector<double>& costs) {
  double largest = 0;
  for (double cost : costs) largest = std::max(largest, cost);
  int largest_bits = 0, count_bits = 0;
  std::frexp(largest, &largest_bits);  // largest < 2^largest_bits
  std::frexp(static_cast<double>(costs.size()), &count_bits);
  const int shift = 62 - count_bits - largest_bits;

  std::vector<int64_t> sums(1, 0);
  sums.reserve(costs.size() + 1);
  for (double cost : costs) {
    sums.push_back(sums.back() + std::llround(std::ldexp(cost, shift)));
  }
  return sums;
}

// The last cut that a block from `from` can reach at a cost of at most `limit`.
Cut reach(const std::vector<int64_t>& sums, Cut from, int64_t limit) {
  const auto end =
      std::upper_bound(sums.begin() + from, sums.end(),
                       sums[static_cast<std::size_t>(from)] + limit);
  return end - sums.begin() - 1;
}

// Whether `partitions` blocks of at most `limit` are enough. To take as much
// as fits, block by block, reaches as far as any choice does. Blocks that are
// then left empty do no harm: a fuller one can be split.
bool is_enough(const std::vector<int64_t>& sums, int64_t partitions,
               int64_t limit) {
  const Cut end = static_cast<Cut>(sums.size()) - 1;
  Cut at = 0;
  for (int64_t k = 0; k < partitions && at < end; ++k) {
    at = reach(sums, at, limit);
  }
  return at == end;
}

int64_t smallest_limit(const std::vector<int64_t>& sums, int64_t partitions) {
  int64_t largest = 0;
  for (std::size_t k = 1; k < sums.size(); ++k) {
    largest = std::max(largest, sums[k] - sums[k - 1]);
  }
  // A greedy block that a layer of at most `largest` no longer fits into is
  // fuller than an equal share, so that `high` is always enough.
  int64_t low = std::max(largest, sums.back() / partitions);
  int64_t high = sums.back() / partitions + largest;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (is_enough(sums, partitions, middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// What makes one of two cuttings with the same largest block the more even.
struct Unevenness {
  unsigned __int128 squared_costs = 0;  // < 2^124
  int64_t squared_lengths = 0;

  friend bool operator<(const Unevenness& a, const Unevenness& b) {
    return a.squared_costs != b.squared_costs
               ? a.squared_costs < b.squared_costs
               : a.squared_lengths < b.squared_lengths;
  }
  Unevenness plus_block(int64_t cost, int64_t length) const {
    const auto wide = static_cast<unsigned __int128>(cost);
    return {squared_costs + wide * wide, squared_lengths + length * length};
  }
};

// Finds the most even cutting into blocks of at most `limit`: dynamic
// programming over the blocks. After block k a cut can lie between
// earliest_[k] and latest_[k], every one of them is on some valid cutting, and
// a larger cut never has a smaller best predecessor (both squares meet the
// quadrangle inequality). So the predecessor of the middle cut divides those
// of the others, and a row takes n log n steps instead of n^2.
class Evening {
 public:
  Evening(const std::vector<int64_t>& sums, int64_t partitions, int64_t limit)
      : sums_(sums), partitions_(partitions), limit_(limit) {
    find_ranges();
  }

  std::vector<int64_t> run() {
    best_.assign(sums_.size(), {});
    for (int64_t k = 1; k <= partitions_; ++k) {
      previous_ = best_;
      predecessors_.emplace_back(latest_[k] - earliest_[k] + 1);
      fill(k, earliest_[k], latest_[k], earliest_[k - 1], latest_[k - 1]);
    }
    std::vector<int64_t> lengths(partitions_);
    Cut cut = latest_[partitions_];
    for (int64_t k = partitions_; k >= 1; --k) {
      const Cut predecessor = predecessors_[k - 1][cut - earliest_[k]];
      lengths[k - 1] = cut - predecessor;
      cut = predecessor;
    }
    return lengths;
  }

 private:
  void find_ranges() {
    const Cut end = static_cast<Cut>(sums_.size()) - 1;
    earliest_.assign(partitions_ + 1, 0);
    latest_.assign(partitions_ + 1, end);
    latest_[0] = 0;
    for (int64_t k = 1; k < partitions_; ++k) {
      latest_[k] = std::min(reach(sums_, latest_[k - 1], limit_),
                            end - (partitions_ - k));
    }
    earliest_[partitions_] = end;
    for (int64_t k = partitions_ - 1; k >= 1; --k) {
      earliest_[k] = std::max(back(earliest_[k + 1]), k);
    }
  }

  // The first cut from which a block can reach `to`.
  Cut back(Cut to) const {
    const auto from =
        std::lower_bound(sums_.begin(), sums_.begin() + to, sums_[to] - limit_);
    return from - sums_.begin();
  }

  // Row k for the cuts first..last, whose predecessors are in low..high.
  void fill(int64_t k, Cut first, Cut last, Cut low, Cut high) {
    if (first > last) return;
    const Cut cut = first + (last - first) / 2;
    const Cut begin = std::max(low, back(cut));
    const Cut end = std::min(high, cut - 1);
    Cut chosen = begin;
    Unevenness least = through(begin, cut);
    for (Cut from = begin + 1; from <= end; ++from) {
      const Unevenness candidate = through(from, cut);
      if (candidate < least) {
        least = candidate;
        chosen = from;
      }
    }
    best_[cut] = least;
    predecessors_[k - 1][cut - earliest_[k]] = chosen;
    fill(k, first, cut - 1, low, chosen);
    fill(k, cut + 1, last, chosen, high);
  }

  Unevenness through(Cut from, Cut to) const {
    return previous_[from].plus_block(sums_[to] - sums_[from], to - from);
  }

  const std::vector<int64_t>& sums_;
  const int64_t partitions_, limit_;
  std::vector<Cut> earliest_, latest_;          // by block
  std::vector<Unevenness> previous_, best_;     // by cut, before and at block k
  std::vector<std::vector<Cut>> predecessors_;  // by block - 1, then by cut
};

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

void check(const std::vector<double>& costs, int64_t partitions) {
  if (partitions < 1) {
    refuse("cannot cut ", costs.size(), " layers into ", partitions,
           " partitions: there must be at least 1");
  }
  if (static_cast<int64_t>(costs.size()) < partitions) {
    refuse("cannot cut ", costs.size(), " layers into ", partitions,
           " partitions: each needs a layer of its own");
  }
  for (std::size_t k = 0; k < costs.size(); ++k) {
    if (!std::isfinite(costs[k]) || costs[k] < 0) {
      refuse("the cost of layer ", k, " is ", costs[k],
             ": costs must be finite and not negative");
    }
  }
}

}  // namespace

std::vector<int64_t> balance_cost(const std::vector<double>& costs,
                                  int64_t partitions) {
  check(costs, partitions);
  const std::vector<int64_t> sums = prefix_sums(costs);
  const int64_t limit = smallest_limit(sums, partitions);
  return Evening(sums, partitions, limit).run();
}

}  // namespace gpipe::balancing
