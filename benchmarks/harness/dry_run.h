// The memory that a training step would use, counted without allocating it.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// Returns the number of layers per partition that minimizes the largest sum of
// parameter bytes in a partition (balancing/partition.h). Each layer counts one
// byte more than its parameters have, so that layers without parameters are
// spread, too. `model` may be on the meta device.
//
// Throws std::invalid_argument if `partitions` < 1 or if there are fewer layers
// than partitions. Thread-safe while no other thread changes the model.
std::vector<int64_t> balance_by_parameters(const torch::nn::Sequential& model,
                                           int64_t partitions);

// Builds the experiment's model on meta devices, one per partition, trains it
// for one step and returns the memory of each device. LibTorch's operators,
// autograd graph and optimizer run as usual, on tensors that have a shape but
// no memory. Cells run one at a time in the schedule's order, so the figures
// are the same to the byte in every run. `experiment` must have a balance,
// unless it has 0 partitions.
//
// Bytes are those that tensors request on a CPU. The workspaces of an
// accelerator's kernels and the rounding of its allocator are not included.
//
// Throws std::invalid_argument if the experiment has more than 128 partitions,
// and what building and training the model throw.
Outcome dry_run(const Benchmark& benchmark, const Workload& workload,
                const Experiment& experiment);

}  // namespace gpipe::benchmarks
