// The exact best cut of a chain of layers for devices of unequal speed, with
// copies between devices and memory limits. No LibTorch.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "balancing/solver/infeasible.h"
#include "gpipe/schedule/checkpoint.h"

namespace gpipe::balancing {

// A layer and its costs per micro-batch. All numbers are finite and >= 0.
struct ChainLayer {
  // Seconds on a device of speed 1. The time of recomputes because of
  // checkpointing belongs to `backward`.
  double forward = 0, backward = 0;
  // Bytes that the next layer receives. They are copied if the cut is after
  // this layer.
  double output_bytes = 0;
  // Bytes that are allocated all the time, independent of micro-batches:
  // parameters, gradients, optimizer state, buffers.
  double resident_bytes = 0;
  // Bytes that the graph of one micro-batch keeps from forward to backward.
  double saved_bytes = 0;
};

// A skip tensor (gpipe/skip.h) from one layer to a later one. If the two layers
// are in different partitions, it is copied directly from one to the other.
struct ChainSkip {
  int64_t stashed_by = 0, popped_by = 0;  // layers; stashed_by < popped_by
  double bytes = 0;                       // per micro-batch, finite and >= 0
};

// The device of a partition.
struct ChainDevice {
  double speed = 1;  // finite and > 0; a layer takes its seconds / speed
  double memory_bytes = std::numeric_limits<double>::infinity();  // >= 0
};

// The connection from any device to any other. A copy takes latency + bytes *
// seconds_per_byte seconds; both members are finite and >= 0.
struct ChainLink {
  double latency = 0;
  double seconds_per_byte = 0;
};

// Layers that are to be cut into as many partitions as there are devices.
// Partition j is a block of one or more consecutive layers and runs on device
// j.
struct Chain {
  std::vector<ChainLayer> layers;
  std::vector<ChainSkip> skips;
  std::vector<ChainDevice> devices;
  ChainLink link;
  int64_t microbatches = 1;
  // The largest number of micro-batches whose graph, or whose inputs, partition
  // j keeps at one time; keep_for() fills them. One number per device, >= 0.
  std::vector<int64_t> graphs_kept, inputs_kept;
};

// A schedule: GPipe's (all forwards, then all backwards), or one forward and
// one backward in turns (PipeDream-flush, 1F1B).
enum class ChainSchedule { kFillDrain, kOneForwardOneBackward };

// Fills `graphs_kept` and `inputs_kept` from the devices and micro-batches of
// `chain`.
//
// With p partitions and m micro-batches, partition j has m micro-batches in
// flight in fill-drain, and min(p - j, m) in 1F1B (Narayanan et al., arXiv
// 2006.09503). It keeps the inputs of all of these. It keeps their graphs, too,
// if checkpointing is off. Otherwise it keeps one graph, that of the
// micro-batch whose backward runs. The exception is kExceptLast in 1F1B: where
// two or more are in flight it keeps two graphs, because the graph of the last
// micro-batch waits until the backwards of the others are done.
//
// Throws std::invalid_argument if there are no devices or if `microbatches` <
// 1.
void keep_for(Chain& chain, ChainSchedule schedule, Checkpoint checkpoint);

// The costs of one partition per micro-batch.
struct StageCost {
  double forward = 0, backward = 0;  // seconds
  // Seconds of the copies into the partition in the forward direction. The
  // copies of the gradients take as long in the other direction. Copies run
  // beside computation. 0 for partition 0.
  double transfer = 0;
  double memory_bytes = 0;
};

// Returns the cost of the block [first, last) of layers as partition
// `partition`:
//
//   input bytes   output_bytes of the layer before the block, and the bytes of
//                 the skip tensors that are popped in it and stashed before it
//   transfer      link.latency + link.seconds_per_byte * input bytes
//   memory_bytes  sum of resident_bytes + graphs_kept * sum of saved_bytes
//                 + inputs_kept * input bytes; partition 0 has no input bytes
//
// Neither the mini-batch itself nor temporary memory of operators is counted.
//
// Throws std::invalid_argument if a number of the chain is out of its range
// (see above), if the chain has fewer layers than devices, lists of unequal
// length or `microbatches` < 1, if the partition or a layer does not exist, or
// if the block is empty. The text names the number and its place.
// Complexity: O(n) for n layers and skips.
// Threads: all functions of this header are pure.
StageCost stage_cost(const Chain& chain, int64_t partition, int64_t first,
                     int64_t last);

// Returns the stage_cost() of each partition. `balance`: layers per partition,
// each > 0.
//
// Throws std::invalid_argument as stage_cost() does, or if the balance has
// another number of partitions or layers than the chain.
std::vector<StageCost> stage_costs(const Chain& chain,
                                   const std::vector<int64_t>& balance);

// Return the seconds of one mini-batch in GPipe's schedule. Each copy counts as
// a pipeline stage of its own between two stages that compute:
//
//   sum over partitions of (forward + backward + 2 * transfer)
//     + (m - 1) * (largest forward or transfer + largest backward or transfer)
//
// where m is the number of micro-batches; compare fill_drain_time()
// (balancing/solver/fill_drain.h). Memory limits are ignored.
//
// Throw std::invalid_argument as stage_costs() does, if the list of stages is
// empty, or if `microbatches` < 1.
double makespan(const Chain& chain, const std::vector<int64_t>& balance);
double makespan(const std::vector<StageCost>& stages, int64_t microbatches);

// Returns the layers per partition of a cut with the smallest makespan() among
// the cuts that respect `memory_bytes` of every device.
//
// Ties are broken in this order, so the result is always the same:
// 1. the smallest time of the slowest partition (forward + backward) or copy
//    (both directions),
// 2. the smallest sum of squared forward + backward,
// 3. the smallest sum of squared block lengths,
// 4. the longest last block, then the longest block before it, and so on.
//
// The result is exact, with times rounded to multiples of a power of two. That
// power is at most 2^-56 n m of the largest time of a layer on the slowest
// device, or 2^-56 (p + m) of the time to copy everything that can be copied,
// whichever is more. If that bound is below 1 and speeds are powers of two,
// whole numbers are not rounded.
//
// Throws InfeasibleError if no cut respects the limits, and
// std::invalid_argument as stage_cost() does.
// Complexity: branch and bound over limits for the largest forward and the
// largest backward. For given limits, the smallest sum of times is a shortest
// path, found in O(p n (log n + s)), where s is the number of skip tensors
// across a cut. Usually 10 to 250 shortest paths are needed, and more if speeds
// are unequal and micro-batches few. Memory limits and ties add O(p n^2).
// Memory: O(p n s). A U-Net of 370 layers into 8 takes 1 to 8 ms, one of 2,133
// layers 3 to 150 ms, on one core of an AMD EPYC at 2.6 GHz (bazel run
// //balancing/solver:partition_benchmark).
std::vector<int64_t> balance_chain(const Chain& chain);

namespace detail {
// Returns cuts by the solvers that assume equal devices, free copies and
// unlimited memory: those of balance_cost() (balancing/solver/partition.h) for
// forward + backward, and of balance_fill_drain()
// (balancing/solver/fill_drain.h). The chain must have passed check_chain().
std::vector<std::vector<int64_t>> plain_balances(const Chain& chain);
}  // namespace detail

}  // namespace gpipe::balancing
