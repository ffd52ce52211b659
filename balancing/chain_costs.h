// The costs of all blocks of a chain, one after the other. Internal to
// balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain.h"
#include "balancing/partition_sums.h"

namespace gpipe::balancing::detail {

// Skips by the layer that pops them: those of layer k are
// skips[begin[k]] to skips[begin[k + 1] - 1], in the chain's order.
struct SkipsByPop {
  explicit SkipsByPop(const Chain& chain);
  std::vector<ChainSkip> skips;
  std::vector<int64_t> begin;
};

// What a block needs of memory, layer by layer. stage_cost and the search add
// up here, so that they get the same number to the last bit. A chain and its
// skips must outlive what is made from them.
class BlockBytes {
 public:
  // Begins with the empty block at `first` as a partition.
  BlockBytes(const Chain& chain, const SkipsByPop& skips, int64_t partition,
             Cut first)
      : chain_(chain),
        skips_(skips),
        first_(first),
        last_(first),
        graphs_(static_cast<double>(chain.graphs_kept[partition])),
        inputs_(static_cast<double>(chain.inputs_kept[partition])),
        input_bytes_(partition > 0 ? chain.layers[first - 1].output_bytes : 0) {
  }

  // Whether the block with one more layer has more input.
  bool extend() {
    const ChainLayer& layer = chain_.layers[last_];
    resident_bytes_ += layer.resident_bytes;
    saved_bytes_ += layer.saved_bytes;
    bool more_input = false;
    for (int64_t k = skips_.begin[last_]; k < skips_.begin[last_ + 1]; ++k) {
      if (skips_.skips[k].stashed_by < first_) {
        input_bytes_ += skips_.skips[k].bytes;
        more_input = true;
      }
    }
    ++last_;
    return more_input;
  }

  Cut first() const { return first_; }
  Cut last() const { return last_; }
  double input() const { return input_bytes_; }
  double memory() const {
    return resident_bytes_ + graphs_ * saved_bytes_ + inputs_ * input_bytes_;
  }

 private:
  const Chain& chain_;
  const SkipsByPop& skips_;
  const Cut first_;
  Cut last_;
  const double graphs_, inputs_;
  double resident_bytes_ = 0, saved_bytes_ = 0, input_bytes_;
};

// Seconds as integers: all makespans of the chain are below 2^62. The chain
// must outlive this.
class ChainCosts {
 public:
  explicit ChainCosts(const Chain& chain);

  const Chain& chain() const { return chain_; }
  int64_t layers() const { return static_cast<int64_t>(chain_.layers.size()); }
  int64_t partitions() const {
    return static_cast<int64_t>(chain_.devices.size());
  }
  const SkipsByPop& skips() const { return skips_; }

  // On the device of the partition.
  const Sums& forwards(int64_t partition) const {
    return sums_[sums_of_[partition]].forward;
  }
  const Sums& backwards(int64_t partition) const {
    return sums_[sums_of_[partition]].backward;
  }

  // Of a copy of so many bytes.
  int64_t transfer(double bytes) const;

 private:
  struct SpeedSums {
    double speed;
    Sums forward, backward;
  };

  void choose_shift();
  int64_t seconds(double on_speed_one, double speed) const;
  void add_sums(double speed);

  const Chain& chain_;
  SkipsByPop skips_;
  int shift_ = 0;
  std::vector<SpeedSums> sums_;   // by different speed
  std::vector<int64_t> sums_of_;  // index into sums_, by partition
};

}  // namespace gpipe::balancing::detail
