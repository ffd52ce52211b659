#include "benchmarks/harness/costs/parameter_balance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>

#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

torch::nn::Sequential relus(int count) {
  torch::nn::Sequential model;
  for (int i = 0; i < count; ++i) model->push_back(torch::nn::ReLU());
  return model;
}

TEST(ParameterBalance, CutsByBytesOfParameters) {
  const MetaGuard meta;  // meta tensors have no values to read
  const torch::nn::Sequential model(
      torch::nn::Linear(4, 4), torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
      torch::nn::Linear(12, 4));  // 20, 20, 20 and 52 parameters
  EXPECT_THAT(balance_by_parameters(model, 1), ElementsAre(4));
  EXPECT_THAT(balance_by_parameters(model, 2), ElementsAre(3, 1));
  EXPECT_THAT(balance_by_parameters(model, 4), ElementsAre(1, 1, 1, 1));
}

TEST(ParameterBalance, SpreadsLayersWithoutParameters) {
  EXPECT_THAT(balance_by_parameters(relus(4), 2), ElementsAre(2, 2));
}

TEST(ParameterBalance, RefusesMorePartitionsThanLayers) {
  EXPECT_THROW(balance_by_parameters(relus(2), 3), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::benchmarks
