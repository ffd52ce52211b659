// Public: how to cut a model into partitions that are about equally slow.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "balancing/partition.h"
#include "balancing/profile.h"

namespace gpipe::balancing {

namespace detail {
void check_partitions(int64_t partitions, const torch::nn::Sequential& module);
}  // namespace detail

// Layers per partition, for GPipeOptions: the layers of `module` are timed
// (see profile_times in balancing/profile.h for the arguments and what is left
// unchanged), and cut so that the slowest partition is as fast as possible
// (see balance_cost in balancing/partition.h).
//
//   auto balance = gpipe::balancing::balance_by_time(
//       4, model, torch::rand({8, 3, 224, 224}),
//       gpipe::balancing::TimeOptions().timeout(5.0));
//   gpipe::GPipe pipeline(model, gpipe::GPipeOptions(balance));
//
// Errors: c10::ValueError for partitions < 1 or fewer layers than partitions;
// and those of profile_times.
template <typename Sample>
std::vector<int64_t> balance_by_time(int64_t partitions,
                                     torch::nn::Sequential module,
                                     Sample sample,
                                     const TimeOptions& options = {}) {
  detail::check_partitions(partitions, module);
  return balance_cost(profile_times(module, std::move(sample), options),
                      partitions);
}

}  // namespace gpipe::balancing
