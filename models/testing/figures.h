// Figures of models that tests compare: parameters, layers, and the tensors
// that cross from layer to layer.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpipe/meta.h"

namespace gpipe::models::testing {

// Returns the model that `make` builds, without memory.
template <typename Make>
torch::nn::Sequential on_meta(Make make) {
  const MetaGuard meta;
  return make();
}

// Returns an image of [1, 3, side, side] without memory.
torch::Tensor meta_image(int64_t side);

int64_t count_parameters(const torch::nn::Module& module);

// Returns the number of parameters of each partition. The balance must add up
// to the number of layers.
std::vector<int64_t> parameters_by(const torch::nn::Sequential& model,
                                   const std::vector<int64_t>& balance);

// Returns the number of parameters of each layer.
std::vector<int64_t> parameters_by_layer(const torch::nn::Sequential& model);

// Return the number of modules of a type (an Impl) among the layers, or among
// all modules.
template <typename Type>
int count_layers(const torch::nn::Sequential& model) {
  int count = 0;
  for (const auto& layer : model->children()) {
    if (layer->template as<Type>()) ++count;
  }
  return count;
}
template <typename Type>
int count_modules(const torch::nn::Sequential& model) {
  int count = 0;
  for (const auto& module : model->modules(/*include_self=*/false)) {
    if (module->template as<Type>()) ++count;
  }
  return count;
}

std::vector<std::string> layer_names(const torch::nn::Sequential& model);

// Return sums computed in float64, whatever the dtype of the tensors.
double sum_of(const std::vector<torch::Tensor>& tensors);
double sum_of_squares(const std::vector<torch::Tensor>& tensors);

// Returns the norm of one parameter.
double norm_of(const torch::nn::Sequential& model,
               const std::string& parameter);

// Returns the gradients of all parameters. An undefined one fails the test.
std::vector<torch::Tensor> gradients_of(const torch::nn::Sequential& model);

// Returns values from -1 to 1 in ascending order, equal in every language.
torch::Tensor ramp(const std::vector<int64_t>& shape,
                   torch::Dtype dtype = torch::kFloat);

// Expects that a clone computes the same as `model`, with weights of its own.
void expect_clone_with_own_weights(torch::nn::Sequential model,
                                   const torch::Tensor& input);

struct Crossings {
  int64_t boundary = 0;  // from each partition to the next
  int64_t skips = 0;     // of skip tensors, between any partitions
};

// Returns the bytes that gpipe::summary() predicts for one forward of `model`,
// cut by `balance`, on `input`. All tensors may be on the meta device.
Crossings crossings_of(const torch::nn::Sequential& model,
                       const std::vector<int64_t>& balance,
                       const torch::Tensor& input);

// The unit of torchgpipe's tables.
constexpr double kMiB = 1 << 20;

}  // namespace gpipe::models::testing
