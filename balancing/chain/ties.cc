#include "balancing/chain/ties.h"

#include <algorithm>
#include <utility>

#include "balancing/solver/evening.h"

namespace gpipe::balancing::detail {
namespace {

// The cuts of one label: the shortest paths within its times.
class LabelCuts {
 public:
  LabelCuts(const ChainPaths& paths, const Label& label)
      : paths_(paths),
        layers_(paths.costs().layers()),
        partitions_(paths.costs().partitions()),
        caps_{label.forward, label.backward},
        to_end_(paths.distances(caps_)) {}

  // Returns the smallest possible value of the largest forward + backward, or
  // copy in both directions.
  int64_t least_both() const {
    std::vector<int64_t> least(layers_ + 1, kNone);  // by cut
    least[0] = 0;
    for (int64_t j = 0; j < partitions_; ++j) {
      std::vector<int64_t> next(layers_ + 1, kNone);
      for_each(j, kNone, least, [&](const Block& block) {
        int64_t& there = next[block.last];
        there = std::min(there, std::max(least[block.first], both_of(block)));
      });
      least = std::move(next);
    }
    return least[layers_];
  }

  struct Even {
    Unevenness unevenness;
    std::vector<int64_t> lengths;
  };

  // Returns the most even of the cuts in which no block takes more than `both`.
  Even most_even(int64_t both) const {
    // By partition, then by the cut after it: the cut before it.
    std::vector<std::vector<int64_t>> from(
        partitions_ + 1, std::vector<int64_t>(layers_ + 1, kNone));
    from[0][0] = 0;
    std::vector<Unevenness> least(layers_ + 1), next(layers_ + 1);
    for (int64_t j = 0; j < partitions_; ++j) {
      // First cuts are visited in ascending order, so that the first of equals
      // leaves the longest last block.
      for_each(j, both, from[j], [&](const Block& block) {
        const Unevenness longer = least[block.first].plus_block(
            block.forward + block.backward, block.last - block.first);
        int64_t& there = from[j + 1][block.last];
        if (there == kNone || longer < next[block.last]) {
          next[block.last] = longer;
          there = block.first;
        }
      });
      least.swap(next);
    }
    Even even{least[layers_], std::vector<int64_t>(partitions_)};
    Cut cut = layers_;
    for (int64_t j = partitions_; j > 0; --j) {
      even.lengths[j - 1] = cut - from[j][cut];
      cut = from[j][cut];
    }
    return even;
  }

 private:
  static int64_t both_of(const Block& block) {
    return std::max(block.forward + block.backward, 2 * block.transfer);
  }

  // Calls visit(block) for the blocks of partition j that lie on shortest
  // paths, start at a cut whose entry in `marked` is not kNone, and take at
  // most `both`.
  template <typename Visit>
  void for_each(int64_t j, int64_t both, const std::vector<int64_t>& marked,
                const Visit& visit) const {
    for (Cut first = j; first < layers_; ++first) {
      if (marked[first] == kNone) continue;
      paths_.for_blocks(j, first, caps_, [&](const Block& block) {
        const int64_t rest = to_end_[j + 1][block.last];
        if (rest != kNone && rest + block.sum() == to_end_[j][first] &&
            both_of(block) <= both) {
          visit(block);
        }
      });
    }
  }

  const ChainPaths& paths_;
  const int64_t layers_, partitions_;
  const PassCaps caps_;
  const Distances to_end_;
};

}  // namespace

std::vector<int64_t> evenest(const ChainPaths& paths,
                             const std::vector<Label>& labels) {
  int64_t both = kNone;
  LabelCuts::Even best;
  for (const Label& label : labels) {
    const LabelCuts cuts(paths, label);
    const int64_t least_both = cuts.least_both();
    if (least_both > both) continue;
    LabelCuts::Even even = cuts.most_even(least_both);
    if (least_both < both || is_more_even(even.unevenness, even.lengths,
                                          best.unevenness, best.lengths)) {
      best = std::move(even);
    }
    both = least_both;
  }
  return best.lengths;
}

}  // namespace gpipe::balancing::detail
