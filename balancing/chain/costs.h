// The costs of all blocks of a chain. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain/chain.h"
#include "balancing/solver/sums.h"

namespace gpipe::balancing::detail {

// The skips, grouped by the layer that pops them. Layer k pops skips[begin[k]]
// to skips[begin[k + 1] - 1], in the chain's order.
struct SkipsByPop {
  explicit SkipsByPop(const Chain& chain);
  std::vector<ChainSkip> skips;
  std::vector<int64_t> begin;
};

// The memory of a block that grows layer by layer. Both stage_cost() and the
// search use this class, so that they get equal numbers to the last bit. The
// chain and the skips must outlive it.
class BlockBytes {
 public:
  // Starts with the empty block at `first` of partition `partition`.
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

  // Adds the next layer to the block. Returns whether the layer pops a skip
  // tensor that was stashed before the block.
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

// Seconds as integers, scaled so that every makespan of the chain is below
// 2^62. The chain must outlive this.
class ChainCosts {
 public:
  explicit ChainCosts(const Chain& chain);

  const Chain& chain() const { return chain_; }
  int64_t layers() const { return std::ssize(chain_.layers); }
  int64_t partitions() const { return std::ssize(chain_.devices); }
  const SkipsByPop& skips() const { return skips_; }

  // Return the sums of times on the partition's device.
  const Sums& forwards(int64_t partition) const {
    return sums_[sums_of_[partition]].forward;
  }
  const Sums& backwards(int64_t partition) const {
    return sums_[sums_of_[partition]].backward;
  }

  // Returns the time of a copy of `bytes`.
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
  std::vector<SpeedSums> sums_;   // one entry per distinct speed
  std::vector<int64_t> sums_of_;  // index into sums_, by partition
};

}  // namespace gpipe::balancing::detail
