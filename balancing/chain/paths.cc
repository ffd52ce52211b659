#include "balancing/chain/paths.h"

#include <cmath>
#include <cstddef>

namespace gpipe::balancing::detail {
namespace {

// The minimum of any range of a list. It is precomputed for each range whose
// length is a power of two; any other range is covered by two of these.
class LeastOf {
 public:
  explicit LeastOf(std::vector<int64_t> values) {
    levels_.push_back(std::move(values));
    const std::size_t size = levels_[0].size();
    for (std::size_t half = 1; 2 * half <= size; half *= 2) {
      const std::vector<int64_t>& below = levels_.back();
      std::vector<int64_t> level(size - 2 * half + 1);
      for (std::size_t k = 0; k < level.size(); ++k) {
        level[k] = std::min(below[k], below[k + half]);
      }
      levels_.push_back(std::move(level));
    }
  }

  // Returns the minimum of the values first to last, both included.
  int64_t operator()(Cut first, Cut last) const {
    const auto count = static_cast<std::size_t>(last - first + 1);
    std::size_t level = 0;
    while (std::size_t{2} << level <= count) ++level;
    return std::min(levels_[level][first],
                    levels_[level][last + 1 - (Cut{1} << level)]);
  }

 private:
  std::vector<std::vector<int64_t>> levels_;
};

}  // namespace

ChainPaths::ChainPaths(const ChainCosts& costs)
    : costs_(costs), pieces_(costs.partitions()) {
  for (int64_t j = 0; j < costs.partitions(); ++j) {
    pieces_[j].resize(costs.layers());
    // Each partition before and after this one needs a layer.
    const Cut end = j == 0 ? 1 : costs.layers() - (costs.partitions() - j - 1);
    for (Cut first = j; first < end; ++first) {
      pieces_[j][first] = pieces(j, first);
    }
  }
}

// Returns the last cut at which a block can end; `first` if there is none.
Cut ChainPaths::longest(int64_t partition, Cut first) const {
  const Cut end = costs_.layers() - (costs_.partitions() - partition - 1);
  const double limit = costs_.chain().devices[partition].memory_bytes;
  if (std::isinf(limit)) return end;
  BlockBytes bytes(costs_.chain(), costs_.skips(), partition, first);
  while (bytes.last() < end) {
    bytes.extend();
    if (!(bytes.memory() <= limit)) return bytes.last() - 1;
  }
  return end;
}

ChainPaths::Pieces ChainPaths::pieces(int64_t partition, Cut first) const {
  const Cut end = longest(partition, first);
  if (partition == 0) {
    const Cut shortest = costs_.partitions() == 1 ? costs_.layers() : 1;
    if (shortest > end) return {};
    return {{shortest, end, 0}};
  }
  Pieces result;
  const Cut shortest =
      partition + 1 < costs_.partitions() ? first + 1 : costs_.layers();
  const auto add = [&](Cut begin, Cut last, double bytes) {
    begin = std::max(begin, shortest);
    if (begin <= last) result.push_back({begin, last, costs_.transfer(bytes)});
  };
  double bytes = costs_.chain().layers[first - 1].output_bytes;
  Cut begin = first + 1;
  const SkipsByPop& skips = costs_.skips();
  for (auto k = static_cast<std::size_t>(skips.begin[first]);
       k < skips.skips.size() && skips.skips[k].popped_by < end; ++k) {
    const ChainSkip& skip = skips.skips[k];
    if (skip.stashed_by >= first) continue;
    // Blocks that end before the layer that pops the skip do not receive it.
    add(begin, skip.popped_by, bytes);
    bytes += skip.bytes;
    begin = skip.popped_by + 1;
  }
  add(begin, end, bytes);
  return result;
}

Distances ChainPaths::distances(const PassCaps& caps) const {
  const int64_t layers = costs_.layers(), partitions = costs_.partitions();
  const int64_t longest_copy = std::min(caps.forward, caps.backward);
  Distances distances(partitions + 1, std::vector<int64_t>(layers + 1, kNone));
  distances[partitions][layers] = 0;
  for (int64_t j = partitions - 1; j >= 0; --j) {
    const Sums& forwards = costs_.forwards(j);
    const Sums& backwards = costs_.backwards(j);
    // Adds the time from the first layer on, so that the time of a block is a
    // difference.
    std::vector<int64_t> from_start(layers + 1, kNone);
    for (Cut cut = 0; cut <= layers; ++cut) {
      if (distances[j + 1][cut] == kNone) continue;
      from_start[cut] = distances[j + 1][cut] + forwards[cut] + backwards[cut];
    }
    const LeastOf least_of(std::move(from_start));
    Cut farthest = 0;  // within the caps; grows with the first cut
    for (Cut first = 0; first < layers; ++first) {
      while (farthest < layers &&
             forwards[farthest + 1] - forwards[first] <= caps.forward &&
             backwards[farthest + 1] - backwards[first] <= caps.backward) {
        ++farthest;
      }
      farthest = std::max(farthest, first);
      int64_t& distance = distances[j][first];
      for (const Piece& piece : pieces_[j][first]) {
        const Cut longest = std::min(piece.longest, farthest);
        if (piece.shortest > longest || piece.transfer > longest_copy) break;
        const int64_t least = least_of(piece.shortest, longest);
        if (least == kNone) continue;
        distance =
            std::min(distance, least - forwards[first] - backwards[first] +
                                   2 * piece.transfer);
      }
    }
  }
  return distances;
}

std::vector<Block> ChainPaths::path(const Distances& distances,
                                    const PassCaps& caps) const {
  std::vector<Block> blocks;
  Cut at = 0;
  for (int64_t j = 0; j < costs_.partitions(); ++j) {
    bool found = false;
    for_blocks(j, at, caps, [&](const Block& block) {
      const int64_t rest = distances[j + 1][block.last];
      if (!found && rest != kNone && rest + block.sum() == distances[j][at]) {
        found = true;
        blocks.push_back(block);
      }
    });
    at = blocks.back().last;
  }
  return blocks;
}

}  // namespace gpipe::balancing::detail
