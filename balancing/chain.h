// The exactly best cut of a chain of layers, with unequal devices, copies
// between them, and limits of memory. No LibTorch.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "balancing/infeasible.h"

namespace gpipe::balancing {

// A layer, and what it costs per micro-batch. All numbers are finite and >= 0.
struct ChainLayer {
  // Seconds on a device of speed 1. What is computed again because of
  // checkpoints belongs to `backward`.
  double forward = 0, backward = 0;
  // What the next layer gets: copied if the cut is after this layer.
  double output_bytes = 0;
  // There all the time, whatever the micro-batches: parameters, gradients,
  // optimizer state, buffers.
  double resident_bytes = 0;
  // Kept from forward to backward by the graph of one micro-batch.
  double saved_bytes = 0;
};

// A skip tensor (gpipe/skip.h) from one layer to a later one. If they are in
// different partitions, it is copied directly.
struct ChainSkip {
  int64_t stashed_by = 0, popped_by = 0;  // layers, from 0; the first is less
  double bytes = 0;                       // per micro-batch, finite and >= 0
};

// What a partition runs on.
struct ChainDevice {
  double speed = 1;  // seconds are divided by it; finite and > 0
  double memory_bytes = std::numeric_limits<double>::infinity();  // >= 0
};

// From any device to another: seconds of a copy are
// latency + bytes * seconds_per_byte, both finite and >= 0.
struct ChainLink {
  double latency = 0;
  double seconds_per_byte = 0;
};

// Layers, to be cut into as many partitions as there are devices: partition j,
// a block of consecutive layers and at least one, is on device j.
struct Chain {
  std::vector<ChainLayer> layers;
  std::vector<ChainSkip> skips;
  std::vector<ChainDevice> devices;
  ChainLink link;
  int64_t microbatches = 1;
  // Of how many micro-batches at most partition j keeps a graph, and the
  // inputs, at one time: see keep_for. One of each per device, >= 0.
  std::vector<int64_t> graphs_kept, inputs_kept;
};

// GPipe's schedule (all forwards, then all backwards), or one forward, one
// backward in turns (PipeDream-flush).
enum class ChainSchedule { kFillDrain, kOneForwardOneBackward };

// Which micro-batches are checkpointed.
enum class ChainCheckpoint { kAlways, kExceptLast, kNever };

// Fills graphs_kept and inputs_kept for the devices and micro-batches that
// `chain` has. With p partitions and m micro-batches, partition j has m
// micro-batches under way at one time in fill-drain, and min(p - j, m) in 1F1B
// (Narayanan et al., arXiv 2006.09503): it keeps the inputs of these. Graphs
// are kept of the same without checkpoints, and else of one, the one that has
// its backward; but with kExceptLast in 1F1B of two where two are under way,
// since the last micro-batch waits with its graph until the others have theirs
// behind them.
//
// Errors: std::invalid_argument without devices, and for microbatches < 1.
void keep_for(Chain& chain, ChainSchedule schedule, ChainCheckpoint checkpoint);

// What one partition costs per micro-batch.
struct StageCost {
  double forward = 0, backward = 0;  // seconds
  // Seconds of the copies into it, one way; the gradients take as long the
  // other way. They run beside what is computed. 0 for partition 0.
  double transfer = 0;
  double memory_bytes = 0;
};

// The cost of the block [first, last) of layers as partition `partition`:
//
//   input bytes   output_bytes of the layer before it, and the bytes of the
//                 skip tensors that are popped in it and stashed before it
//   transfer      link.latency + link.seconds_per_byte * input bytes
//   memory_bytes  sum of resident_bytes + graphs_kept * sum of saved_bytes
//                 + inputs_kept * input bytes; partition 0 has no input bytes
//
// The mini-batch itself is not counted, nor what an operator needs for itself.
//
// Errors: std::invalid_argument for a chain with numbers that cannot be (see
// above), with fewer layers than devices, with lists of unequal length, or with
// microbatches < 1; for a partition or layers that there are not; and for an
// empty block. The text names the number and its place.
// Complexity: O(n), of the layers and skips.
// Threads: these are all pure functions.
StageCost stage_cost(const Chain& chain, int64_t partition, int64_t first,
                     int64_t last);

// stage_cost of each partition. `balance`: layers per partition, each > 0.
//
// Errors: as stage_cost; and for a balance of another number of partitions or
// layers.
std::vector<StageCost> stage_costs(const Chain& chain,
                                   const std::vector<int64_t>& balance);

// Seconds of one mini-batch in GPipe's schedule, when each of the copies is a
// stage of the pipeline of its own, between those that compute:
//
//   sum over partitions of (forward + backward + 2 * transfer)
//     + (m - 1) * (largest forward or transfer + largest backward or transfer)
//
// as for balance_fill_drain (balancing/fill_drain.h). Memory is not looked at.
//
// Errors: as stage_costs; std::invalid_argument for an empty list of stages and
// for microbatches < 1.
double makespan(const Chain& chain, const std::vector<int64_t>& balance);
double makespan(const std::vector<StageCost>& stages, int64_t microbatches);

// Layers per partition, of a cut with the least makespan of all that respect
// memory_bytes of every device.
//
// Ties: of the best cuts one of which the slowest partition (forward +
// backward) or copy (there and back) is the fastest; of these one with the
// smallest sum of squared forward + backward; then with the smallest sum of
// squared block lengths; then the one whose last block is the longest, and so
// on towards the front. So the result is always the same.
//
// The result is exact, with times rounded to multiples of a power of two: at
// most 2^-56 n m of the largest time of a layer on the slowest device, or
// 2^-56 (p + m) of the time to copy all that can be copied, if that is more.
// Whole numbers are not rounded as long as that is below 1, if speeds are
// powers of two.
//
// Errors: InfeasibleError if no cut respects the limits; as stage_cost.
// Complexity: branch and bound over limits for the largest forward and the
// largest backward. With these the least sum is a shortest path, found in
// O(p n (log n + s)), s being the number of skip tensors across a cut; 10 to
// 250 of these are usual, more where speeds are unequal and micro-batches few.
// Besides O(p n^2), for how far memory reaches and for ties. O(p n s) of
// memory. A U-Net of 370 layers into 8 takes 1 to 8 ms, one of 2,133 layers 3
// to 150 ms, on one core of an AMD EPYC at 2.6 GHz (bazel run
// //balancing:partition_benchmark).
std::vector<int64_t> balance_chain(const Chain& chain);

}  // namespace gpipe::balancing
