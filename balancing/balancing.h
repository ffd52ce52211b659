// Public: how to cut a model into partitions that are about equally slow.
#pragma once

#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "balancing/memory_profile.h"
#include "balancing/partition.h"
#include "balancing/time_profile.h"
#include "gpipe/runtime/value.h"

namespace gpipe::balancing {

// What a byte of a layer costs; see balance_by_size().
struct SizeOptions {
  // Micro-batches that the input is split into, > 0: a layer keeps memory for
  // one of them at a time.
  TORCH_ARG(int64_t, chunks) = 1;
  // Bytes in all for each byte of parameters, >= 0: parameter, gradient and
  // what the optimizer keeps. 2 for SGD, 3 with momentum; 3 for Adagrad and
  // RMSprop, 4 if centered or with momentum, 5 with both; 4 for Adam and
  // Adadelta, 5 for Adam with amsgrad.
  TORCH_ARG(double, param_scale) = 2.0;
  // Not used: bytes are counted without a device. For callers of torchgpipe's.
  TORCH_ARG(torch::Device, device) = torch::Device(torch::kCPU);
};

namespace detail {
void check_partitions(int64_t partitions, const torch::nn::Sequential& module);
std::vector<int64_t> balance_by_size(int64_t partitions,
                                     const torch::nn::Sequential& module,
                                     const Value& input,
                                     const SizeOptions& options);
}  // namespace detail

// Layers per partition, for GPipeOptions: the layers of `module` are timed
// (see profile_times in balancing/time_profile.h for the arguments and what is
// left unchanged), and cut so that the slowest partition is as fast as possible
// (see balance_cost in balancing/partition.h).
//
//   auto balance = gpipe::balancing::balance_by_time(
//       4, model, torch::rand({8, 3, 224, 224}),
//       gpipe::balancing::TimeOptions().timeout(5.0));
//   gpipe::GPipe pipeline(model, gpipe::GPipeOptions(balance));
//
// Errors: c10::ValueError for partitions < 1 or fewer layers than partitions;
// and those of profile_times. Threads: as for profile_times.
template <typename Sample>
std::vector<int64_t> balance_by_time(int64_t partitions,
                                     torch::nn::Sequential module,
                                     Sample sample,
                                     const TimeOptions& options = {}) {
  detail::check_partitions(partitions, module);
  return balance_cost(totals(profile_times(module, std::move(sample), options)),
                      partitions);
}

// The same by memory: a layer's cost is what there is more after its forward of
// one micro-batch than before (LayerMemory::kept_bytes in
// balancing/memory_profile.h) plus param_scale times the bytes of its
// parameters. No memory is taken for this, and no device is needed; `input` is
// a whole mini-batch, and may be on the meta device, as may `module`.
//
// Errors: c10::ValueError for partitions or chunks < 1, fewer layers than
// partitions, or a param_scale that is negative, infinite or NaN; c10::Error
// for a module that is null; and those of profile_memory.
// Threads: as for profile_memory.
// Both functions are after torchgpipe's of the same names.
template <typename Input>
std::vector<int64_t> balance_by_size(int64_t partitions,
                                     torch::nn::Sequential module, Input input,
                                     const SizeOptions& options = {}) {
  return detail::balance_by_size(partitions, module,
                                 Value::wrap(std::move(input)), options);
}

}  // namespace gpipe::balancing
