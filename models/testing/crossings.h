// The bytes that a pipeline has to move between its partitions.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace gpipe::models::testing {

struct Crossings {
  int64_t boundary = 0;  // from each partition to the next
  int64_t skips = 0;     // of skip tensors, from partition to partition
};

// Of one forward of `model`, cut by `balance`, on `input`. Layers pass tensors
// or pairs of them, and those that stash a skip tensor stash what they return.
Crossings crossings_of(torch::nn::Sequential model,
                       const std::vector<int64_t>& balance,
                       const torch::Tensor& input);

}  // namespace gpipe::models::testing
