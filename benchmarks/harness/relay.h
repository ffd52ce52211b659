// Skip tensors that go from partition to partition, as if there were no way
// past those between.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

namespace gpipe::benchmarks {

struct Relayed {
  torch::nn::Sequential model;
  std::vector<int64_t> balance;  // of it
};

// `model`, whose layers it takes over, with two more layers at the start of a
// partition for each skip tensor (gpipe/skip.h) that goes past it: they pop the
// tensor and stash it again. So it crosses each boundary on its way, and lives
// in each partition. What the model computes is the same.
//
// Layers at these places get and give one tensor. The layers that pop such a
// tensor look for it in another namespace afterwards, so that `model` itself
// does not work any more.
//
// Errors: c10::TypeError for skips that do not match; c10::ValueError for a
// balance that does not fit.
Relayed relay_skips(const torch::nn::Sequential& model,
                    const std::vector<int64_t>& balance);

}  // namespace gpipe::benchmarks
