// The optimizers of the papers' tables.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

namespace gpipe::benchmarks {

// The optimizers, with LibTorch's defaults for all but the learning rate.
enum class Optimizer {
  kSgd,      // no state: 8 bytes per parameter, with its gradient
  kRmsprop,  // an average of squares: 12 bytes per parameter
};

// Makes an optimizer for `parameters`.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Optimizer kind, std::vector<at::Tensor> parameters, double learning_rate);

// Returns the tensors that an optimizer of make_optimizer() keeps from step to
// step. There are none before its first step.
std::vector<at::Tensor> state_of(const torch::optim::Optimizer& optimizer);

}  // namespace gpipe::benchmarks
