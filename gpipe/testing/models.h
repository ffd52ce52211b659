// Small models for tests, and the plain training step that a pipeline equals.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
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

// All that a training step leaves: output, gradients of the input and of each
// parameter (undefined where there is none) and buffers. All on the CPU.
struct StepState {
  torch::Tensor output;
  std::vector<torch::Tensor> grads;
  std::vector<torch::Tensor> buffers;
};

// After a step that gave `output` for `input`.
StepState state_after(torch::nn::Module& module, const torch::Tensor& output,
                      const torch::Tensor& input);

using Forward = std::function<torch::Tensor(torch::Tensor)>;

// The loss of some rows of a mini-batch, from their outputs and inputs, which
// may be on different devices: a sum over the rows. A step divides it by the
// rows of the whole mini-batch, so that it is the same for any split.
using Loss = std::function<torch::Tensor(const torch::Tensor& output,
                                         const torch::Tensor& input)>;

torch::Tensor sum_of_squares(const torch::Tensor& output,
                             const torch::Tensor& input);

// Zeroes the gradients of `module`, runs forward and backward, and collects.
// `input` is copied to device(), and requires grad unless it is of integers.
StepState training_step(torch::nn::Module& module, const Forward& forward,
                        const torch::Tensor& input,
                        const Loss& loss = sum_of_squares);

// The same for a plain Sequential, all of it on the reference_device(), that
// accumulates `chunks` micro-batches, their backwards in reverse, as a pipeline
// does.
StepState plain_step(torch::nn::Sequential module, const torch::Tensor& input,
                     int64_t chunks, const Loss& loss = sum_of_squares);

// "" if both hold the same bits, else what differs first.
std::string difference(const StepState& a, const StepState& b);

// The largest absolute difference of outputs, gradients and buffers. Infinity
// if one has a tensor, a size or a NaN that the other has not, or both have a
// NaN.
double distance(const StepState& a, const StepState& b);

}  // namespace gpipe::testing
