// The cuts of a chain as paths, and the shortest of them. Internal to
// balancing. No LibTorch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "balancing/chain_costs.h"

namespace gpipe::balancing::detail {

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

// Limits for the time of each computation and copy of a cut, in the forward
// and in the backward pass; a copy takes as long in both.
struct PassCaps {
  int64_t forward = kNone, backward = kNone;
};

// A block of layers as a partition.
struct Block {
  Cut first, last;
  int64_t forward, backward, transfer;  // the last of these one way

  int64_t sum() const { return forward + backward + 2 * transfer; }
};

// distances[j][c]: the least sum of times of blocks for the partitions from j
// on, of which the first begins at cut c; kNone if there are no such blocks.
// There is a row behind the last partition.
using Distances = std::vector<std::vector<int64_t>>;

// Blocks that respect the memory of their partition's device, as edges of a
// graph: a cut is a path from before the first layer to behind the last one.
// `costs` must outlive this.
class ChainPaths {
 public:
  // O(p n s), where s is the number of skip tensors; O(p n^2) if memory is
  // limited, to see how far each block can go.
  explicit ChainPaths(const ChainCosts& costs);

  const ChainCosts& costs() const { return costs_; }

  // Of the cuts that respect the caps. O(p n (log n + s)).
  Distances distances(const PassCaps& caps) const;

  // The blocks of a cut that respects the caps and of which the sum is
  // distances[0][0], which must not be kNone. O(n).
  std::vector<Block> path(const Distances& distances,
                          const PassCaps& caps) const;

  // Calls visit(block) for each block that can be the partition, begins at
  // `first`, and respects the caps, from the shortest to the longest.
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
  // Blocks from one cut that have the same input, and end at one of the cuts
  // shortest to longest.
  struct Piece {
    Cut shortest, longest;
    int64_t transfer;
  };
  using Pieces = std::vector<Piece>;  // from short to long

  Cut longest(int64_t partition, Cut first) const;
  Pieces pieces(int64_t partition, Cut first) const;

  const ChainCosts& costs_;
  std::vector<std::vector<Pieces>> pieces_;  // by partition, then by first cut
};

}  // namespace gpipe::balancing::detail
