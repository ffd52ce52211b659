// The optimizers of the papers' tables.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace gpipe::benchmarks {

// Plain; with LibTorch's defaults for all but the learning rate.
enum class Optimizer {
  kSgd,      // keeps nothing: 8 bytes per parameter, with its gradient
  kRmsprop,  // keeps an average of squares: 12
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Optimizer kind, std::vector<at::Tensor> parameters, double learning_rate);

// What it keeps from step to step; before the first one nothing. For those
// that make_optimizer() makes.
std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer);

}  // namespace gpipe::benchmarks
