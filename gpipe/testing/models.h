// Small models for tests, and the plain training step that a pipeline must
// equal.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace gpipe::testing {

// Returns eight layers with convolutions, BatchNorm, dropout and a linear end,
// in double precision, for inputs [n, 3, 8, 8]. `dropout`: its probability.
torch::nn::Sequential conv_model(double dropout = 0.0);

// Returns seven layers with two nested long skips, of integers and floats, for
// inputs [n, 4] in double precision.
torch::nn::Sequential skip_model();

// Returns six layers, linear and activation functions, for inputs [n, 6] in
// double precision.
torch::nn::Sequential linear_model();

// A model to train.
struct Subject {
  std::function<torch::nn::Sequential()> make;
  std::vector<int64_t> input, target;  // sizes without dimension 0
};

// Returns linear_model(), skip_model() and conv_model() with dropout, by their
// names "linear", "skip" and "conv".
const std::map<std::string, Subject>& subjects();

// Returns `sizes` with `rows` in front.
std::vector<int64_t> with_rows(int64_t rows, std::vector<int64_t> sizes);

// The results of a training step, all on the CPU: output, gradients of the
// input and of each parameter (undefined if there is none), and buffers.
struct StepState {
  torch::Tensor output;
  std::vector<torch::Tensor> grads;
  std::vector<torch::Tensor> buffers;
};

// Returns the results of a step that computed `output` from `input`.
StepState state_after(torch::nn::Module& module, const torch::Tensor& output,
                      const torch::Tensor& input);

using Forward = std::function<torch::Tensor(torch::Tensor)>;

// A function that returns the loss of some rows of a mini-batch, as a sum over
// these rows. `output` and `input` may be on different devices. A step divides
// the loss by the rows of the whole mini-batch, so that the result does not
// depend on the split.
using Loss = std::function<torch::Tensor(const torch::Tensor& output,
                                         const torch::Tensor& input)>;

torch::Tensor sum_of_squares(const torch::Tensor& output,
                             const torch::Tensor& input);

// Zeroes the gradients of `module`, runs forward and backward, and returns the
// results. `input` is copied to device(), and requires a gradient if it is
// floating point.
StepState training_step(torch::nn::Module& module, const Forward& forward,
                        const torch::Tensor& input,
                        const Loss& loss = sum_of_squares);

// The same for the forward of `module`, a holder such as GPipe.
template <typename Holder>
StepState training_step(Holder module, const torch::Tensor& input) {
  return training_step(
      *module, [&](torch::Tensor x) { return module->forward(x); }, input);
}

// Runs the same step with a plain Sequential on reference_device(). Accumulates
// `chunks` micro-batches, with the backwards in reverse order, as a pipeline
// does.
StepState plain_step(torch::nn::Sequential module, const torch::Tensor& input,
                     int64_t chunks, const Loss& loss = sum_of_squares);

// Returns copies of the gradients on the CPU, undefined if there is none.
std::vector<torch::Tensor> grads_of(const std::vector<torch::Tensor>& tensors);
std::vector<torch::Tensor> grads_of(const torch::nn::Module& module);

// Returns "" if both have the same bits, else the first difference.
std::string difference(const std::vector<torch::Tensor>& a,
                       const std::vector<torch::Tensor>& b);
std::string difference(const StepState& a, const StepState& b);

// Returns "" if both are close as torch::allclose() defines it with these
// tolerances, else the first difference.
std::string difference(const std::vector<torch::Tensor>& a,
                       const std::vector<torch::Tensor>& b, double relative,
                       double absolute);

// Returns the largest absolute difference of all tensors. Returns infinity if a
// tensor exists only in one of them, if sizes differ, or if there is a NaN.
double distance(const StepState& a, const StepState& b);
double distance(const std::vector<torch::Tensor>& a,
                const std::vector<torch::Tensor>& b);

}  // namespace gpipe::testing
