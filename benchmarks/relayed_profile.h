// Profiles of models whose skip tensors go from partition to partition.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <vector>

#include "balancing/profile.h"

namespace gpipe::benchmarks {

struct RelayedProfile {
  balancing::Profile profile;
  std::vector<int64_t> balance;  // of the model with relays
};

// That of relay_skips(model, balance), from a profile of `model` itself: a
// relay takes no time, all other layers the time that they have there, by their
// names. Bytes are counted for `input`, a sample of the profile's rows, without
// memory if model and input are on the meta device. `model` does not work any
// more afterwards.
//
// Errors: those of relay_skips() and balancing::profile_memory(). Threads: as
// for these.
RelayedProfile relayed_profile(const balancing::Profile& profile,
                               const torch::nn::Sequential& model,
                               const at::Tensor& input,
                               const std::vector<int64_t>& balance);

}  // namespace gpipe::benchmarks
