// What all engines of a comparison train: models.py in C++.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gpipe::benchmarks {

struct SubjectSizes {
  int64_t batch = 0;  // rows of a mini-batch
  int64_t depth = 0;  // U-Net's levels, AmoebaNet's L, blocks, layers
  int64_t width = 0;  // U-Net's and AmoebaNet's channels, features
  int64_t side = 0;   // of images, pixels; of sequences, tokens
};

struct Subject {
  torch::nn::Sequential model;
  at::Tensor input, target;
  std::function<at::Tensor(at::Tensor output, at::Tensor target)> loss;
};

// The names that make_subject() knows: "resnet101" (whose depth and width are
// given), "unet" (2 convolutions per level), "amoebanetd", "mlp" (Linear and
// ReLU, `depth` of each) and "transformer" (blocks with 4 heads, without an
// embedding).
std::vector<std::string> subject_names();

// Weights and data are drawn from LibTorch's default generator, which is seeded
// for that, as models.py draws them from Python's: one seed gives the same
// values in both. std::invalid_argument for another name or no
// rows; the errors of //models for other sizes.
Subject make_subject(const std::string& name, const SubjectSizes& sizes,
                     uint64_t seed);

}  // namespace gpipe::benchmarks
