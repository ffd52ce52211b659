// Relayed skip tensors: they go through every partition between their producer
// and their consumer, instead of directly.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

namespace gpipe::benchmarks {

// A model with relayed skip tensors.
struct Relayed {
  torch::nn::Sequential model;
  std::vector<int64_t> balance;  // layers per partition of `model`
};

// Returns a model with the layers of `model` in which skip tensors
// (gpipe/skip.h) are relayed. For each skip tensor that would bypass a
// partition, two layers are added at the start of that partition. They pop the
// tensor and stash it again, so it crosses each boundary and occupies memory in
// each partition. The model computes the same values.
//
// The input of a partition with added layers must be a single tensor. The
// layers that pop a relayed tensor are changed to use another namespace, so
// `model` itself no longer works.
//
// Throws c10::TypeError if stashes and pops do not match, and c10::ValueError
// if the sum of the balance is not the number of layers.
Relayed relay_skips(const torch::nn::Sequential& model,
                    const std::vector<int64_t>& balance);

}  // namespace gpipe::benchmarks
