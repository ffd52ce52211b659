// The time that each layer of a model takes.
#pragma once

#include <c10/core/Device.h>
#include <torch/arg.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <utility>
#include <vector>

#include "gpipe/runtime/cell/value.h"

namespace gpipe::balancing {

// Options of profile_times(): how long layers are timed, and on which device.
struct TimeOptions {
  // Seconds to keep measuring, >= 0. One warm-up sweep through the model is not
  // measured. After it, at least one sweep is.
  TORCH_ARG(double, timeout) = 1.0;
  // Called on the calling thread after each sweep, with the elapsed fraction of
  // `timeout`, from 0 to 1.
  TORCH_ARG(std::function<void(double)>, progress);
  // Number of other threads that run copies of the model at the same time, >=
  // 0, on a CPU only. They compete for caches and memory bandwidth, as the
  // workers of a pipeline do. Each thread needs the memory of one more model
  // with its gradients. Ignored if a layer cannot be cloned.
  TORCH_ARG(int64_t, concurrent_copies) = 0;
  // Whether backwards in two parts are timed, too: LayerTime::backward_input
  // and backward_weight. Every second sweep then splits its backwards.
  TORCH_ARG(bool, split_backward) = false;
  // The device to measure on. Layers on other devices are moved to it one at a
  // time, so the whole model need not fit.
  TORCH_ARG(torch::Device, device) = torch::Device(torch::kCPU);
};

// Seconds that one layer takes.
struct LayerTime {
  double forward = 0;
  // The backward, without `accumulate`.
  double backward = 0;
  // The two parts of a backward that zero-bubble schedules split: gradients of
  // the input, and gradients of the parameters, as
  // gpipe/runtime/autograd/graph.h divides them. Their sum can be more
  // than `backward`. Both 0: not measured.
  double backward_input = 0, backward_weight = 0;
  // Adding the gradients of the parameters to those of earlier micro-batches,
  // for each micro-batch but the first. It does not depend on the rows.
  double accumulate = 0;

  // Returns the sum of forward, backward and accumulate.
  double total() const { return forward + backward + accumulate; }
};

// A function that makes the layers `first` ... `first` + `count` - 1 of a
// model, as gpipe::LayerBuilder does.
using MakeLayers =
    std::function<torch::nn::Sequential(int64_t first, int64_t count)>;

// Returns the total() of each layer, for balance_cost().
//
// Threads: pure function.
std::vector<double> totals(const std::vector<LayerTime>& times);

namespace detail {
// Throws c10::ValueError if a parameter has a gradient.
void check_gradients(const torch::nn::Module& module);
std::vector<LayerTime> profile_times(const torch::nn::Sequential& module,
                                     const internal::Value& sample,
                                     const TimeOptions& options);
std::vector<LayerTime> profile_times(int64_t layers, const MakeLayers& make,
                                     const internal::Value& sample,
                                     const TimeOptions& options);
}  // namespace detail

// Measures the seconds that each layer of `module` takes for one forward and
// one backward in training mode. Returns the medians over sweeps through the
// model, each of which starts from `sample`. The first sweep is a warm-up
// (memory pools, code that is loaded on first use) and does not count: with it,
// the first layers would seem to take a quarter of the model's time.
//
// Each layer has a graph of its own and runs on the calling thread (and on
// those of `concurrent_copies`). Its input is the output of the layers before
// it, skip tensors included. Its backward starts from ones for each output that
// requires a gradient. It computes the gradients of the layer's parameters and
// of those inputs whose producers need a gradient. The gradient of `sample` is
// computed only if `sample` requires one. The gradients of parameters are added
// to sums. For a model on the CPU, profiled there, all forwards of a sweep run
// before its backwards, and the sums stay in memory, as in training: data is as
// far away in the caches. So the profile needs the memory of a training step
// with one micro-batch. On other devices each layer is run and freed by itself.
//
// `sample`: a torch::Tensor, a std::vector<torch::Tensor> or a std::tuple of 1
// to 8 of them. Give it the size of one micro-batch. It is not changed.
//
// `module` is unchanged afterwards, also if a layer throws. Copies of the
// layers are run. A layer that has no clone() is run itself, and its modes,
// parameters and buffers are restored. What its forward writes into parameters
// in place, and gives to members that are not registered, stays. No gradient is
// accumulated. The states of LibTorch's default random number generators are
// restored.
//
// Throws c10::ValueError if a parameter already has a gradient, if `timeout` is
// negative, infinite or NaN, or if `concurrent_copies` is negative. Throws
// c10::TypeError if the sample or an output is not a tensor, c10::Error if
// `module` is null, and whatever a layer throws. Threads: any thread may call
// this while no other thread uses `module` or LibTorch's default random number
// generators; restoring their states would repeat numbers. Other work on the
// machine makes layers look slower. The idea is that of torchgpipe's
// balance_by_time, which also counts the first sweep and sums forward and
// backward.
template <typename Sample>
std::vector<LayerTime> profile_times(torch::nn::Sequential module,
                                     Sample sample,
                                     const TimeOptions& options = {}) {
  return detail::profile_times(module, internal::Value::wrap(std::move(sample)),
                               options);
}

// Does the same for a model of `layers` layers of which no two need to be in
// memory. Calls `make` for one layer at a time, in order, once in each sweep.
// Drops the layer before it makes the next one. The calls are not timed.
// TimeOptions::concurrent_copies has no effect.
//
// Throws c10::ValueError if `make` returns another number of layers than 1.
template <typename Sample>
std::vector<LayerTime> profile_times(int64_t layers, const MakeLayers& make,
                                     Sample sample,
                                     const TimeOptions& options = {}) {
  return detail::profile_times(
      layers, make, internal::Value::wrap(std::move(sample)), options);
}

}  // namespace gpipe::balancing
