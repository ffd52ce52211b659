// The optimizers of torch::optim by name, with two groups of parameters.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>

#include "trainer/options.h"

namespace gpipe::trainer {

// Of the module's parameters, of which those of at most one dimension (biases,
// and the weights of normalisations) have a group without weight decay of their
// own, unless OptimizerOptions::decay_norms. A group that would be empty is
// left out, but for the last one.
//
// c10::ValueError for a name that is none of sgd, adam, adamw, rmsprop and
// adagrad, and for numbers that cannot be.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerOptions& options, const torch::nn::Module& module);

}  // namespace gpipe::trainer
