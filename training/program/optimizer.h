// The optimizers of torch::optim by name, with two parameter groups.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "training/program/options.h"

namespace gpipe::train_program {

// Returns an optimizer for `parameters`. Parameters with at most
// one dimension (biases and the weights of normalization layers) form a group
// without weight decay, unless Options::decay_norms is true. The other
// group has the rest. An empty group is omitted if the other one is not empty.
//
// Throws c10::ValueError if the name is not sgd, adam, adamw, rmsprop or
// adagrad, or if a number is out of range.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Options& options, const std::vector<at::Tensor>& parameters);

}  // namespace gpipe::train_program
