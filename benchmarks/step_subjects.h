// What the benchmarks of single mechanisms make steps of: the papers' models,
// small enough for a CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <functional>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

struct StepSubject {
  std::string name;
  std::function<torch::nn::Sequential()> model;
  at::Tensor input;
};

// ResNet-101, AmoebaNet-D, U-Net and Transformer, with 16 rows each. Seeds
// LibTorch's default generator.
std::vector<StepSubject> step_subjects();

// Of the output alone.
at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::benchmarks
