// A cut of a model without any times.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

namespace gpipe::benchmarks {

// Layers per partition, such that the largest sum of the bytes of parameters is
// as small as can be (balancing/partition.h). Each layer counts a byte more
// than it has, so that those without parameters are spread, too. `model` may be
// on the meta device.
//
// Errors: std::invalid_argument for partitions < 1 and for fewer layers than
// partitions. Threads: any, while no other one changes the model.
std::vector<int64_t> balance_by_parameters(const torch::nn::Sequential& model,
                                           int64_t partitions);

}  // namespace gpipe::benchmarks
