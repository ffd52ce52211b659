// The cuts of a chain as paths in a graph, and the shortest of them. Internal
// to balancing. No LibTorch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "balancing/chain/costs.h"

namespace gpipe::balancing::detail {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Upper limits for the time of each computation and copy of a cut, in the
// forward and in the backward pass. A copy takes the same time in both.
struct PassCaps {
  int64_t forward = kNone, backward = kNone;
};

// A block of layers with its times as one partition.
struct Block {
  Cut first, last;
  int64_t forward, backward, transfer;  // `transfer` is one way

  int64_t sum() const { return forward + backward + 2 * transfer; }
};

// The smallest sums of times. distances[j][c] is the smallest sum over blocks
// for partitions j, j + 1, ... of which the first starts at cut c; kNone if
// there are no such blocks. There is one more row after the last partition.
using Distances = std::vector<std::vector<int64_t>>;

// A graph whose edges are the blocks that fit in the memory of their
// partition's device. A cut is a path from before the first layer to after the
// last one. `costs` must outlive this.
class ChainPaths {
 public:
  // Complexity: O(p n s), where s is the number of skip tensors. If memory is
  // limited, O(p n^2), to find how far each block can extend.
  explicit ChainPaths(const ChainCosts& costs);

  const ChainCosts& costs() const { return costs_; }

  // Returns the distances for the cuts that respect the caps. O(p n (log n +
  // s)).
  Distances distances(const PassCaps& caps) const;

  // Returns the blocks of a cut that respects the caps and whose sum of times
  // is distances[0][0], which must not be kNone. O(n).
  std::vector<Block> path(const Distances& distances,
                          const PassCaps& caps) const;

  // Calls visit(block) for each allowed block of `partition` that starts at
  // `first` and respects the caps, from the shortest to the longest.
  template <typename Visit>
  void for_blocks(int64_t partition, Cut first, const PassCaps& caps,
                  const Visit& visit) const {
    const Sums& forwards = costs_.forwards(partition);
    const Sums& backwards = costs_.backwards(partition);
    for (const Piece& piece : pieces_[partition][first]) {
      if (piece.transfer > std::min(caps.forward, caps.backward)) return;
      for (Cut last = piece.shortest; last <= piece.longest; ++last) {
        const Block block = {first, last, forwards[last] - forwards[first],
                             backwards[last] - backwards[first],
                             piece.transfer};
        if (block.forward > caps.forward) return;
        if (block.backward > caps.backward) return;
        visit(block);
      }
    }
  }

 private:
  // Blocks that start at one cut, have the same input, and end at one of the
  // cuts from `shortest` to `longest`.
  struct Piece {
    Cut shortest, longest;
    int64_t transfer;
  };
  using Pieces = std::vector<Piece>;  // in order of increasing length

  Cut longest(int64_t partition, Cut first) const;
  Pieces pieces(int64_t partition, Cut first) const;

  const ChainCosts& costs_;
  std::vector<std::vector<Pieces>> pieces_;  // by partition, then by first cut
};

}  // namespace gpipe::balancing::detail
