// Functions that cut a model into partitions of about equal cost.
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
#include "gpipe/runtime/cell/value.h"

namespace gpipe::balancing {

// How bytes are counted in balance_by_size().
struct SizeOptions {
  // Number of micro-batches that the input is split into, > 0. A layer's
  // activations are counted for one micro-batch.
  TORCH_ARG(int64_t, chunks) = 1;
  // Elements of the input that each micro-batch gets whole: see
  // GPipeOptions::unsplit.
  TORCH_ARG(std::vector<int64_t>, unsplit) = {};
  // Total bytes per byte of parameters that require a gradient, >= 0: the
  // parameter, its gradient and the optimizer state. Use 2 for SGD, 3 for SGD
  // with momentum; 3 for Adagrad and RMSprop, 4 for RMSprop if centered or with
  // momentum, 5 with both; 4 for Adam and AdamW, 5 with amsgrad.
  TORCH_ARG(double, param_scale) = 2.0;
  // Ignored, because bytes are counted without a device. Exists so that code
  // written for torchgpipe can be ported.
  TORCH_ARG(torch::Device, device) = torch::Device(torch::kCPU);
};

namespace detail {
void check_cut(int64_t partitions, int64_t layers);
std::vector<int64_t> balance_by_size(int64_t partitions,
                                     const torch::nn::Sequential& module,
                                     const internal::Value& input,
                                     const SizeOptions& options);
}  // namespace detail

// Times the layers of `module` and cuts it so that the slowest partition is as
// fast as possible. Returns the layers per partition, for GPipeOptions. See
// profile_times() (balancing/time_profile.h) for the arguments and for what
// stays unchanged, and balance_cost() (balancing/partition.h) for the
// cut.
//
//   auto balance = gpipe::balancing::balance_by_time(
//       4, model, torch::rand({8, 3, 224, 224}),
//       gpipe::balancing::TimeOptions().timeout(5.0));
//   gpipe::GPipe pipeline(model, gpipe::GPipeOptions(balance));
//
// Throws c10::ValueError if `partitions` < 1 or if there are fewer layers than
// partitions, and whatever profile_times() throws.
// Threads: as for profile_times().
// The function follows torchgpipe's balance_by_time.
template <typename Sample>
std::vector<int64_t> balance_by_time(int64_t partitions,
                                     torch::nn::Sequential module,
                                     Sample sample,
                                     const TimeOptions& options = {}) {
  detail::check_cut(partitions, static_cast<int64_t>(module->size()));
  return balance_cost(totals(profile_times(module, std::move(sample), options)),
                      partitions);
}

// Does the same for a model of `layers` layers that is never in memory as a
// whole; see the second profile_times(). For a model that is read from a file,
// with gpipe::ExportedFile (models/exported/exported.h):
//
//   balance_by_time(4, file.size(), [&](int64_t first, int64_t count) {
//     return file.read(first, count).layers;
//   }, sample);
template <typename Sample>
std::vector<int64_t> balance_by_time(int64_t partitions, int64_t layers,
                                     const MakeLayers& make, Sample sample,
                                     const TimeOptions& options = {}) {
  detail::check_cut(partitions, layers);
  return balance_cost(
      totals(profile_times(layers, make, std::move(sample), options)),
      partitions);
}

// Cuts `module` so that the partition with the most memory needs as little as
// possible. Returns the layers per partition, for GPipeOptions. The cost of a
// layer, in bytes, is LayerMemory::kept_bytes (balancing/memory_profile.h) for
// one micro-batch, plus `param_scale` times the bytes of its parameters that
// require a gradient, plus the bytes of its other parameters and its buffers.
//
// The layers run on the meta device, so no memory is allocated and no
// accelerator is needed.
//
// `input`: a whole mini-batch. `input` and `module` may be on any device,
// including meta.
//
// Throws c10::ValueError if `partitions` < 1, if `chunks` < 1, if there are
// fewer layers than partitions, if `param_scale` is negative, infinite or NaN,
// or if a parameter has a gradient. Throws c10::Error if `module` is null, and
// whatever profile_memory() throws.
// Threads: as for profile_memory().
// The function follows torchgpipe's balance_by_size.
template <typename Input>
std::vector<int64_t> balance_by_size(int64_t partitions,
                                     torch::nn::Sequential module, Input input,
                                     const SizeOptions& options = {}) {
  return detail::balance_by_size(
      partitions, module, internal::Value::wrap(std::move(input)), options);
}

}  // namespace gpipe::balancing
