#include "models/testing/figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <memory>

#include "gpipe/summary.h"

namespace gpipe::models::testing {

using torch::Tensor;
using torch::nn::Sequential;

Tensor meta_image(int64_t side) {
  return torch::empty({1, 3, side, side}, torch::kMeta);
}

int64_t count_parameters(const torch::nn::Module& module) {
  int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

std::vector<int64_t> parameters_by(const Sequential& model,
                                   const std::vector<int64_t>& balance) {
  std::vector<int64_t> counts;
  std::size_t next = 0;
  for (const int64_t layers : balance) {
    counts.push_back(0);
    for (int64_t k = 0; k < layers; ++k) {
      counts.back() += count_parameters(*model->ptr(next++));
    }
  }
  EXPECT_EQ(next, model->size());
  return counts;
}

std::vector<int64_t> parameters_by_layer(const Sequential& model) {
  return parameters_by(model, std::vector<int64_t>(model->size(), 1));
}

std::vector<std::string> layer_names(const Sequential& model) {
  return model->named_children().keys();
}

double sum_of(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const Tensor& tensor : tensors) {
    sum += tensor.detach().to(torch::kDouble).sum().item<double>();
  }
  return sum;
}

double sum_of_squares(const std::vector<Tensor>& tensors) {
  double sum = 0;
  for (const Tensor& tensor : tensors) {
    sum += tensor.detach().to(torch::kDouble).square().sum().item<double>();
  }
  return sum;
}

double norm_of(const Sequential& model, const std::string& parameter) {
  return std::sqrt(sum_of_squares({model->named_parameters()[parameter]}));
}

std::vector<Tensor> gradients_of(const Sequential& model) {
  std::vector<Tensor> gradients;
  for (const auto& parameter : model->named_parameters()) {
    const Tensor gradient = parameter->grad();
    EXPECT_TRUE(gradient.defined()) << parameter.key();
    if (gradient.defined()) gradients.push_back(gradient);
  }
  return gradients;
}

Tensor ramp(const std::vector<int64_t>& shape, torch::Dtype dtype) {
  int64_t size = 1;
  for (const int64_t each : shape) size *= each;
  return torch::linspace(-1, 1, size, dtype).view(shape);
}

void expect_clone_with_own_weights(Sequential model, const Tensor& input) {
  Sequential copy(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  const auto originals = model->named_parameters();
  const auto copies = copy->named_parameters();
  ASSERT_EQ(copies.size(), originals.size());
  for (std::size_t k = 0; k < copies.size(); ++k) {
    EXPECT_NE(copies[k]->data_ptr(), originals[k]->data_ptr());
    EXPECT_TRUE(copies[k]->equal(*originals[k])) << originals[k].key();
  }
  model->eval();
  copy->eval();
  EXPECT_TRUE(copy->forward(input).equal(model->forward(input)));
  // The copy must compute with the parameters that it has registered.
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : copy->parameters()) parameter.zero_();
  }
  EXPECT_FALSE(copy->forward(input).equal(model->forward(input)));
}

Crossings crossings_of(const torch::nn::Sequential& model,
                       const std::vector<int64_t>& balance,
                       const torch::Tensor& input) {
  Crossings sum;
  for (const CrossingSummary& each : summary(model, balance, input).crossings) {
    (each.skip ? sum.skips : sum.boundary) += *each.bytes;
  }
  return sum;
}

}  // namespace gpipe::models::testing
