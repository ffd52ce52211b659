// Profiles of models with relayed skip tensors (harness/relay.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "balancing/profile.h"

namespace gpipe::benchmarks {

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
