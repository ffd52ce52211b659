// Relayed skip tensors: they go through every partition between their producer
// and their consumer, instead of directly.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "balancing/profile.h"

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

// The profile of a model with relayed skip tensors.
struct RelayedProfile {
  balancing::Profile profile;
  std::vector<int64_t> balance;  // layers per partition, with the relays
};

// Returns the profile of relay_skips(model, balance), computed from a profile
// of `model`. A relay takes no time. All other layers keep their times; they
// are found by name. Bytes are counted for `input`. No memory is allocated if
// the model and the input are on the meta device. `model` no longer works
// afterwards.
//
// `input`: a mini-batch with as many rows as the profile.
//
// Throws what relay_skips() and balancing::profile_memory() throw. Threads: The
// rules of these functions apply.
RelayedProfile relayed_profile(const balancing::Profile& profile,
                               const torch::nn::Sequential& model,
                               const at::Tensor& input,
                               const std::vector<int64_t>& balance);

}  // namespace gpipe::benchmarks
