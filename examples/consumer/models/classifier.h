// SPDX-License-Identifier: Apache-2.0

#ifndef MODELS_CLASSIFIER_H_
#define MODELS_CLASSIFIER_H_

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

namespace consumer {

// Returns a model of four layers, [batch, 16] to [batch, 10].
inline torch::nn::Sequential classifier() {
  return torch::nn::Sequential(torch::nn::Linear(16, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 32),
                               torch::nn::Linear(32, 10));
}

}  // namespace consumer

#endif  // MODELS_CLASSIFIER_H_
