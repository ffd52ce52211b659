// The time and memory of the stages into which a workload is cut. No LibTorch.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "balancing/planner/problem.h"
#include "gpipe/schedule.h"
#include "gpipe/simulation.h"
#include "gpipe/simulation/memory.h"

namespace gpipe::balancing::planner {

// Returns the prefix sums of `costs`: the sums of the first 0, 1, 2, ... of
// them.
std::vector<double> prefix_sums(const std::vector<double>& costs);

// ---- Costs

// Sums over blocks of consecutive layers of one workload.
class Blocks {
 public:
  // Both must outlive this object.
  Blocks(const Problem& problem, const Workload& workload);

  const Workload& workload() const { return workload_; }
  int64_t layers() const { return std::ssize(savers_); }

  // Returns the seconds at speed 1 of a kind of computation of the layers
  // first..last-1. O(1).
  double seconds(ActionKind kind, int64_t first, int64_t last) const {
    const auto& sums = seconds_[static_cast<std::size_t>(kind)];
    return sums[last] - sums[first];
  }
  // Returns Layer::trained_bytes of the layers. O(1).
  double trained(int64_t first, int64_t last) const {
    return trained_[last] - trained_[first];
  }
  // Returns the bytes of parameters, gradients, optimizer and buffers. O(1).
  double resident(int64_t first, int64_t last) const {
    return resident_[last] - resident_[first];
  }

  // Return what `layer` adds to GrowingBlock::saved(), for_weights() and
  // incoming() of a block that begins at `first`, when the block is extended to
  // it.
  double saved_of(int64_t first, int64_t layer) const {
    return sum(savers_[layer], first);
  }
  double for_weights_of(int64_t first, int64_t layer) const {
    return sum(weight_savers_[layer], first);
  }
  double skips_into(int64_t first, int64_t layer) const {
    return sum(skips_into_[layer], first);
  }

 private:
  // Bytes that count in blocks that begin after layer `from`: of a saved
  // tensor, after the saver before this one; of a skip, after the layer that
  // stashes.
  struct Entry {
    int64_t from = -1;
    double bytes = 0;
  };
  static double sum(const std::vector<Entry>& entries, int64_t first);

  const Workload& workload_;
  // Prefix sums. The seconds are by kind of computation.
  std::array<std::vector<double>, gpipe::internal::kActionCosts.size()>
      seconds_;
  std::vector<double> trained_, resident_;
  std::vector<std::vector<Entry>> savers_, weight_savers_;  // by layer
  std::vector<std::vector<Entry>> skips_into_;  // by the layer that pops
};

// Returns the blocks of each workload of `problem`, which must outlive them.
std::vector<Blocks> blocks_of(const Problem& problem);

// A block of layers that grows at its end.
class GrowingBlock {
 public:
  // Makes an empty block that begins at `first`. `blocks` must outlive it.
  GrowingBlock(const Blocks& blocks, int64_t first);

  int64_t last() const { return last_; }
  // Returns Blocks::resident() of this block.
  double resident() const { return blocks_->resident(first_, last_); }
  // Returns the bytes that one micro-batch keeps from forward to backward, on
  // top of those that arrive.
  double saved() const { return saved_; }
  // Returns what it keeps instead between the parts of a split backward.
  double for_weights() const { return for_weights_; }
  // Returns the bytes that arrive from other stages per micro-batch: the output
  // of the layer before the block, and the skips from before. 0 for the first
  // block.
  double incoming() const { return incoming_; }

  // Adds the layer last().
  void extend();

 private:
  const Blocks* blocks_;
  int64_t first_, last_;
  double saved_ = 0, for_weights_ = 0, incoming_ = 0;
};

// The costs of all stages of a cut. All lists have one entry per stage.
struct StageTable {
  // Seconds per micro-batch, on the rank of the stage, with
  // Problem::action_seconds. All else of the costs is empty.
  Costs seconds;
  // Bytes per micro-batch, and in total.
  std::vector<double> saved, for_weights, incoming, trained, resident;
  // Seconds of the copy from the previous stage, and of the gradient's copy
  // back: how long it occupies the link, and how much later it arrives. 0 if
  // both stages are on one rank.
  std::vector<double> wire, delay, wire_back, delay_back;

  std::size_t size() const { return saved.size(); }
};

// Returns the costs of the stages. `balance`: layers per stage, each > 0.
// `rank_of_stage`: as long as `balance`. O(layers and savers).
StageTable stage_table(const Problem& problem, const Blocks& blocks,
                       const std::vector<int>& rank_of_stage,
                       const Balance& balance);

// Returns the costs in the form of simulate() (gpipe/simulation.h), without the
// time of copies.
Costs costs_of(const StageTable& table);

// ---- What a rank holds at most while it runs its part of a schedule

// The numbers of micro-batches of which a rank holds each part at one time, for
// each of its stages in ascending order.
using Held = std::vector<gpipe::internal::HeldParts>;

// Returns the moments of a rank at which it holds most, for any costs: those
// that no other moment exceeds in all numbers. `actions`: of the rank, without
// O and L. `stages`: those of the rank, ascending.
//
// The rule is that of with_memory() (gpipe/simulation/memory.h). Without O and
// L it does not depend on times, so the search for cuts needs no simulation to
// know the peak of each.
//
// Complexity: O(n k) for n actions, where k is the number of moments returned
// times the number of stages.
std::vector<Held> most_held(const std::vector<Action>& actions,
                            const std::vector<int>& stages);

// Returns the moments of one of the rank's stages, counted from 0, alone.
std::vector<Held> moments_of_stage(const std::vector<Held>& moments,
                                   std::size_t stage);

// Returns the peak in bytes of a rank with these `stages`: the resident bytes
// and the largest sum at any of the moments.
double peak_bytes(const std::vector<Held>& moments,
                  const std::vector<int>& stages, const StageTable& table);

// Returns the same for a rank whose only stage is `block`.
double peak_bytes(const std::vector<Held>& moments, const GrowingBlock& block);

}  // namespace gpipe::balancing::planner
