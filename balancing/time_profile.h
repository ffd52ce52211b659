// How long the layers of a model take.
#pragma once

#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <utility>
#include <vector>

#include "gpipe/runtime/value.h"

namespace gpipe::balancing {

// Where layers are timed, and for how long.
struct TimeOptions {
  // Seconds to go on measuring, >= 0. At least one sweep through the model is
  // measured, after one that is not.
  TORCH_ARG(double, timeout) = 1.0;
  // Is told, on the calling thread, what part of the time has gone by, from 0
  // to 1, after each sweep.
  TORCH_ARG(std::function<void(double)>, progress);
  // How many other threads run copies of the model meanwhile, on a CPU, as the
  // workers of a pipeline do: they take caches and memory bandwidth from each
  // other. Costs the memory of as many models; without effect where a layer
  // cannot be copied.
  TORCH_ARG(int64_t, company) = 0;
  // Where to measure. Layers that live elsewhere are brought there one at a
  // time, so that the whole model need not fit.
  TORCH_ARG(torch::Device, device) = torch::Device(torch::kCPU);
};

// Seconds.
struct LayerTime {
  double forward = 0, backward = 0;

  // Of both.
  double total() const { return forward + backward; }
};

// The sums of both, as balance_cost() takes them. Threads: pure function.
std::vector<double> totals(const std::vector<LayerTime>& times);

namespace detail {
std::vector<LayerTime> profile_times(const torch::nn::Sequential& module,
                                     const Value& sample,
                                     const TimeOptions& options);
}  // namespace detail

// The seconds that each layer of `module` takes for a forward and a backward
// in training mode: the medians over sweeps through the model, each of which
// starts from `sample`. The first sweep warms up (memory pools, code that is
// loaded on first use) and does not count: it would make the first layers look
// like a quarter of the model.
//
// Each layer is run by itself on the calling thread (and those of `company`),
// with the values that the layers before it have made, skip tensors included.
// Its backward starts from ones for each output that requires a gradient, and
// computes the gradients of the layer's parameters and of those inputs that had
// a gradient to pass on; those of the sample only if it requires one.
//
// `sample`: a torch::Tensor, a std::vector<torch::Tensor> or a std::tuple of 1
// to 8 of them; best of the size of one micro-batch. It is not changed.
// `module` is unchanged afterwards, also when a layer throws: copies of the
// layers are run (of one that has no clone(): itself, with mode, buffers and
// device put back), no gradient is accumulated, and LibTorch's default
// generators have the state that they had.
//
// Errors: c10::ValueError if a parameter already has a gradient, the timeout
// is no time or the company negative; c10::TypeError for a sample or an output
// that is no tensor; c10::Error for a module that is null; and whatever a layer
// throws. Threads: any, while no other one uses `module`, or random numbers of
// LibTorch's default generators, which would come again. What others compute
// meanwhile makes layers look slower.
// The idea is that of torchgpipe's balance_by_time, which counts the first
// sweep too and sums forward and backward.
template <typename Sample>
std::vector<LayerTime> profile_times(torch::nn::Sequential module,
                                     Sample sample,
                                     const TimeOptions& options = {}) {
  return detail::profile_times(module, Value::wrap(std::move(sample)), options);
}

}  // namespace gpipe::balancing
