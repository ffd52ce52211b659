// A cut of a model that needs no measured times.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

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

}  // namespace gpipe::benchmarks
