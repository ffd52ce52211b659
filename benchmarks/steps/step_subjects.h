// The models that benchmarks of single mechanisms train: the papers' models,
// small enough for a CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
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

// The sizes of the subjects.
struct StepSizes {
  int64_t rows = 16;
  int64_t width = 256;  // of the Transformer
  double dropout = 0;   // of the Transformer
};

// Returns ResNet-101, AmoebaNet-D and U-Net, for images of 64 x 64, and a
// Transformer, for 64 tokens. Seeds LibTorch's default generator.
std::vector<StepSubject> step_subjects(const StepSizes& sizes = {});

// Returns a loss: the mean of the squared outputs. Ignores `target`.
at::Tensor mean_square(const at::Tensor& output, const at::Tensor& target);

}  // namespace gpipe::benchmarks
