#include "balancing/solver/evening.h"

#include <algorithm>
#include <compare>
#include <cstddef>

namespace gpipe::balancing::detail {
namespace {

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

}  // namespace

std::vector<int64_t> most_even(const Cap& cap, int64_t partitions) {
  const Ranges ranges(cap, std::ssize(*cap.sums) - 1, partitions);
  if (ranges.pairs() > kEveningWork) return about_even(cap, ranges);
  return Evening(cap, ranges).run();
}

}  // namespace gpipe::balancing::detail
