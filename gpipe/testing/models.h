// Small models for tests, and the plain training step that a pipeline equals.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace gpipe::testing {

// A layer made of a function.
struct LambdaImpl : torch::nn::Module {
  using Function = std::function<torch::Tensor(torch::Tensor)>;
  explicit LambdaImpl(Function function) : function(std::move(function)) {}
  torch::Tensor forward(torch::Tensor x) { return function(std::move(x)); }
  Function function;
};
TORCH_MODULE(Lambda);

// Eight layers with convolutions, BatchNorm, dropout and a linear end, in
// double precision, for inputs [n, 3, 8, 8]. `dropout`: its probability.
torch::nn::Sequential conv_model(double dropout = 0.0);

// Seven layers with two nested long skips, integer and float, for inputs
// [n, 4] in double precision.
torch::nn::Sequential skip_model();

// Six linear layers with activations for inputs [n, 6], double precision.
torch::nn::Sequential linear_model();

// All that a training step leaves: output, gradient of the input, gradients
// (undefined where there is none) and buffers. All on the CPU.
struct StepState {
  torch::Tensor output;
  std::vector<torch::Tensor> grads;
  std::vector<torch::Tensor> buffers;
};

using Forward = std::function<torch::Tensor(torch::Tensor)>;

// Zeroes the gradients of `module`, runs forward and backward of the mean of
// squares of the output, and collects. `input` is copied to device().
StepState training_step(torch::nn::Module& module, const Forward& forward,
                        const torch::Tensor& input);

// The same for a plain Sequential, all of it on the reference_device(), that
// accumulates `chunks` micro-batches, their backwards in reverse, as a pipeline
// does.
StepState plain_step(torch::nn::Sequential module, const torch::Tensor& input,
                     int64_t chunks);

// "" if both hold the same bits, else what differs first.
std::string difference(const StepState& a, const StepState& b);

// The largest absolute difference of outputs and gradients.
double distance(const StepState& a, const StepState& b);

}  // namespace gpipe::testing
