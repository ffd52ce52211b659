// The bytes that a pipeline moves between its partitions.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace gpipe::models::testing {

struct Crossings {
  int64_t boundary = 0;  // from each partition to the next
  int64_t skips = 0;     // of skip tensors, between any partitions
};

// Returns the bytes that gpipe::summary() predicts for one forward of `model`,
// cut by `balance`, on `input`. All tensors may be on the meta device.
Crossings crossings_of(const torch::nn::Sequential& model,
                       const std::vector<int64_t>& balance,
                       const torch::Tensor& input);

// The unit of torchgpipe's tables.
constexpr double kMiB = 1 << 20;

}  // namespace gpipe::models::testing
