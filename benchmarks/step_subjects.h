// The models that benchmarks of single mechanisms train: the papers' models,
// small enough for a CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

// A model with its input.
struct StepSubject {
  std::string name;
  std::function<torch::nn::Sequential()> model;
  at::Tensor input;
};

// Returns ResNet-101, AmoebaNet-D, U-Net and Transformer, with inputs of 16
// rows. Seeds LibTorch's default generator.
std::vector<StepSubject> step_subjects();

// Returns a loss: the mean of the squared outputs. Ignores `target`.
at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::benchmarks
