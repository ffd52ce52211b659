#include "balancing/partition.h"

#include <algorithm>
#include <cmath>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "gpipe/base/text.h"

namespace gpipe::balancing {
namespace {

using internal::refuse;

// ---- Costs of layers as integers, and their prefix sums

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

// Throws std::invalid_argument, naming the layer, if a cost is negative,
// infinite or NaN.
void check_costs(const std::vector<double>& costs) {
  for (std::size_t k = 0; k < costs.size(); ++k) {
    if (!std::isfinite(costs[k]) || costs[k] < 0) {
      refuse("the cost of layer ", k, " is ", costs[k],
             ": costs must be finite and not negative");
    }
  }
}

// ---- The smallest limit of blocks that allows a cut

// An upper limit for the cost of a block, as counted by `sums`. `sums` must
// outlive the cap.
struct Cap {
  const Sums* sums;
  int64_t limit;
};

// Returns the last cut that an allowed block from `from` can reach. O(log n).
Cut reach(const Cap& cap, Cut from) {
  const Sums& sums = *cap.sums;
  const auto end =
      std::upper_bound(sums.begin() + from, sums.end(), sums[from] + cap.limit);
  return end - sums.begin() - 1;
}

// Returns the first cut from which an allowed block can reach `to`. O(log n).
Cut back(const Cap& cap, Cut to) {
  const Sums& sums = *cap.sums;
  return std::lower_bound(sums.begin(), sums.begin() + to,
                          sums[to] - cap.limit) -
         sums.begin();
}

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

// Returns the smallest limit for blocks, as counted by `sums`, with which a cut
// into `partitions` blocks exists.
//
// Complexity: O(n + i p log n), where i <= 62 is the number of rounds of a
// bisection over a greedy probe. Each round ends at the cost of a block, so i
// is usually 10 to 30 (Pinar and Aykanat, "Fast optimal load balancing
// algorithms for 1D partitioning", J. Parallel Distrib. Comput. 64, 2004,
// "exact bisection").
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

// ---- The most even of the cuts that respect a cap

// The largest number of pairs, of a block and a possible end of it, for which
// most_even() searches exactly. Each thousand pairs takes about 20
// microseconds. The number of pairs never exceeds layers times partitions.
constexpr int64_t kEveningWork = 32768;

// The measure of how uneven a cut is; see most_even().
struct Unevenness {
  unsigned __int128 squared_costs = 0;  // < 2^124
  int64_t squared_lengths = 0;

  friend auto operator<=>(const Unevenness&, const Unevenness&) = default;
  Unevenness plus_block(int64_t cost, int64_t length) const {
    const auto wide = static_cast<unsigned __int128>(cost);
    return {squared_costs + wide * wide, squared_lengths + length * length};
  }
};

// The possible positions of the cut after block k: earliest[k] to latest[k].
// Each of them occurs in some cut that respects the cap.
struct Ranges {
  std::vector<Cut> earliest, latest;

  Ranges(const Cap& cap, Cut end, int64_t partitions)
      : earliest(partitions + 1, 0), latest(partitions + 1, end) {
    latest[0] = 0;
    for (int64_t k = 1; k < partitions; ++k) {
      latest[k] = std::min(reach(cap, latest[k - 1]), end - (partitions - k));
    }
    earliest[partitions] = end;
    for (int64_t k = partitions - 1; k >= 1; --k) {
      earliest[k] = std::max(back(cap, earliest[k + 1]), k);
    }
  }

  int64_t pairs() const {
    int64_t count = 0;
    for (std::size_t k = 1; k < latest.size(); ++k) {
      count += latest[k] - earliest[k] + 1;
    }
    return count;
  }
};

// Finds the most even cut by dynamic programming over the blocks. A later cut
// never has an earlier best predecessor: both squares satisfy the quadrangle
// inequality, and a cap preserves it, since any part of an allowed block is
// allowed. So the predecessor of the middle cut divides those of the others,
// and a row takes n log n steps instead of n^2.
class Evening {
 public:
  Evening(const Cap& cap, const Ranges& ranges)
      : sums_(*cap.sums), cap_(cap), ranges_(ranges) {}

  std::vector<int64_t> run() {
    const auto partitions = std::ssize(ranges_.latest) - 1;
    previous_.resize(sums_.size());
    best_.resize(sums_.size());
    for (int64_t k = 1; k <= partitions; ++k) {
      // A row reads only what the previous row has written.
      previous_.swap(best_);
      predecessors_.emplace_back(ranges_.latest[k] - ranges_.earliest[k] + 1);
      fill(k, ranges_.earliest[k], ranges_.latest[k], ranges_.earliest[k - 1],
           ranges_.latest[k - 1]);
    }
    std::vector<int64_t> lengths(partitions);
    Cut cut = ranges_.latest[partitions];
    for (int64_t k = partitions; k >= 1; --k) {
      const Cut predecessor = predecessors_[k - 1][cut - ranges_.earliest[k]];
      lengths[k - 1] = cut - predecessor;
      cut = predecessor;
    }
    return lengths;
  }

 private:
  // Fills row k for the cuts first..last, whose predecessors are in low..high.
  void fill(int64_t k, Cut first, Cut last, Cut low, Cut high) {
    if (first > last) return;
    const Cut cut = first + (last - first) / 2;
    const Cut begin = std::max(low, back(cap_, cut));
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
    predecessors_[k - 1][cut - ranges_.earliest[k]] = chosen;
    fill(k, first, cut - 1, low, chosen);
    fill(k, cut + 1, last, chosen, high);
  }

  Unevenness through(Cut from, Cut to) const {
    return previous_[from].plus_block(sums_[to] - sums_[from], to - from);
  }

  const Sums& sums_;
  const Cap cap_;
  const Ranges& ranges_;
  std::vector<Unevenness> previous_, best_;     // by cut, before and at block k
  std::vector<std::vector<Cut>> predecessors_;  // by block - 1, then by cut
};

// Returns prefix sums of adjusted costs: no cost is larger than an equal share
// of the adjusted total, and none is 0.
Sums tamed(const Sums& sums, int64_t partitions) {
  const auto layers = std::ssize(sums) - 1;
  Sums result(sums.size(), 0);
  const auto clamp_all = [&](int64_t least, int64_t most) {
    for (int64_t c = 1; c <= layers; ++c) {
      result[c] = result[c - 1] +
                  std::min(std::max(sums[c] - sums[c - 1], least), most);
    }
  };
  // A few rounds are enough. After the first one the share is about right, and
  // exact rounding is not needed.
  constexpr int kRounds = 8;
  int64_t share = sums.back();
  for (int round = 0; round < kRounds; ++round) {
    clamp_all(0, share);
    share = std::min(share, result.back() / partitions);
  }
  const int64_t little = result.back() / layers / 256 + 1;
  clamp_all(little, std::max(little, share));
  return result;
}

// The rule for many pairs. It never leaves a block empty and never fails: from
// each cut in the range of block k - 1, some allowed block of one or more
// layers ends in the range of block k.
std::vector<int64_t> about_even(const Cap& cap, const Ranges& ranges) {
  const auto partitions = std::ssize(ranges.latest) - 1;
  const Sums counts = tamed(*cap.sums, partitions);
  std::vector<int64_t> lengths;
  Cut at = 0;
  for (int64_t k = 1; k <= partitions; ++k) {
    const Cut low = std::max(ranges.earliest[k], at + 1);
    const Cut high = std::min(ranges.latest[k], reach(cap, at));
    const int64_t left = partitions - k + 1;
    const int64_t wanted =
        counts[at] + (counts.back() - counts[at] + left / 2) / left;
    Cut cut =
        std::lower_bound(counts.begin() + low, counts.begin() + high, wanted) -
        counts.begin();
    if (cut > low && wanted - counts[cut - 1] <= counts[cut] - wanted) --cut;
    lengths.push_back(cut - at);
    at = cut;
  }
  return lengths;
}

// Returns the layers per block, each > 0, of the most even cut into
// `partitions` blocks that respects the cap. Such a cut must exist. A cut with
// the smaller sum of squared block costs is more even; if these are equal, the
// one with the smaller sum of squared block lengths. Among equally even cuts,
// the one with the longest last block is returned, then with the longest block
// before it, and so on.
//
// If there are more than kEveningWork pairs to search, the result respects the
// cap but is only approximately even. Block after block takes its share of the
// rest, as nearly as the cap and one layer per block allow. In this
// computation a layer larger than a share counts as one share, since otherwise
// the blocks around it would be too small, and a layer that costs nothing
// counts a little.
//
// Complexity: O(p n log n) time and O(p n) memory up to kEveningWork, by
// dynamic programming; O(n + p log n) beyond.
std::vector<int64_t> most_even(const Cap& cap, int64_t partitions) {
  const Ranges ranges(cap, std::ssize(*cap.sums) - 1, partitions);
  if (ranges.pairs() > kEveningWork) return about_even(cap, ranges);
  return Evening(cap, ranges).run();
}

}  // namespace

void detail::check_partitions(int64_t partitions, int64_t layers) {
  if (partitions < 1) {
    refuse("cannot cut ", layers, " layers into ", partitions,
           " partitions: there must be at least 1");
  }
  if (layers < partitions) {
    refuse("cannot cut ", layers, " layers into ", partitions,
           " partitions: each needs a layer of its own");
  }
}

void detail::check_balance(const std::vector<int64_t>& balance,
                           int64_t layers) {
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

std::vector<int64_t> balance_cost(const std::vector<double>& costs,
                                  int64_t partitions) {
  detail::check_partitions(partitions, std::ssize(costs));
  check_costs(costs);
  const Sums sums = prefix_sums(costs);
  const int64_t limit = smallest_limit(sums, partitions);
  return most_even({&sums, limit}, partitions);
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
