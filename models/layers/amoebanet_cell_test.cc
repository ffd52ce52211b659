#include "models/layers/amoebanet_cell.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/pooling.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>

#include <cstdint>
#include <sstream>

namespace gpipe::models::amoebanet {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;
namespace F = torch::nn::functional;

OperationLayer layer(Operation operation, int64_t stride,
                     bool true_max_pool = false) {
  OperationOptions options;
  options.operation = operation;
  options.channels = 8;
  options.stride = stride;
  options.true_max_pool = true_max_pool;
  return OperationLayer(options);
}

template <typename Module>
bool is(const OperationLayer& layer) {
  return layer->children().at(0)->as<Module>() != nullptr;
}

TEST(OperationTest, AveragesBehindTheNameMaxPool) {
  const auto x = torch::randn({2, 8, 6, 6});
  for (const int64_t stride : {1, 2}) {
    const auto average = F::avg_pool2d(
        x,
        F::AvgPool2dFuncOptions(3).stride(stride).padding(1).count_include_pad(
            false));
    EXPECT_TRUE(
        layer(Operation::kMaxPool3x3, stride)->forward(x).equal(average));
    EXPECT_TRUE(
        layer(Operation::kAvgPool3x3, stride)->forward(x).equal(average));
  }
}

TEST(OperationTest, TakesTheMaximumIfAskedTo) {
  const auto x = torch::randn({2, 8, 6, 6});
  for (const int64_t stride : {1, 2}) {
    auto pool = layer(Operation::kMaxPool3x3, stride, true);
    EXPECT_TRUE(is<torch::nn::MaxPool2d>(pool));
    EXPECT_TRUE(pool->forward(x).equal(F::max_pool2d(
        x, F::MaxPool2dFuncOptions(3).stride(stride).padding(1))));
  }
  EXPECT_TRUE(is<torch::nn::AvgPool2d>(layer(Operation::kAvgPool3x3, 1, true)));
}

TEST(OperationTest, NoneIsTheIdentityOrReduces) {
  const auto x = torch::randn({2, 8, 6, 6});
  EXPECT_TRUE(layer(Operation::kNone, 1)->forward(x).equal(x));
  EXPECT_TRUE(is<FactorizedReduce>(layer(Operation::kNone, 2)));
}

TEST(OperationTest, KeepsChannelsAndDividesSizes) {
  const auto x = torch::randn({2, 8, 6, 10});
  for (const Operation operation :
       {Operation::kNone, Operation::kAvgPool3x3, Operation::kMaxPool3x3,
        Operation::kConv1x1, Operation::kConv3x3, Operation::kConv1x7Then7x1}) {
    EXPECT_THAT(layer(operation, 1)->forward(x).sizes(),
                ElementsAre(2, 8, 6, 10));
    EXPECT_THAT(layer(operation, 2)->forward(x).sizes(),
                ElementsAre(2, 8, 3, 5));
  }
  EXPECT_THAT(layer(Operation::kMaxPool2x2, 2)->forward(x).sizes(),
              ElementsAre(2, 8, 3, 5));
}

TEST(OperationTest, PrintsItsName) {
  std::ostringstream text;
  layer(Operation::kConv1x7Then7x1, 1)->pretty_print(text);
  EXPECT_EQ(text.str(), "gpipe::models::amoebanet::Operation[conv_1x7_7x1]");
}

// Each half of the channels depends on one pixel in four.
TEST(FactorizedReduceTest, SeesTwoPixelsOfFour) {
  FactorizedReduce reduce(1, 2);
  reduce->eval();
  for (const int64_t size : {4, 5}) {
    auto x = torch::ones({1, 1, size, size}).requires_grad_();
    const Tensor output = reduce->forward(x);
    const int64_t half = (size + 1) / 2;
    EXPECT_THAT(output.sizes(), ElementsAre(1, 2, half, half));
    output.sum().backward();
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t j = 0; j < size; ++j) {
        EXPECT_EQ(x.grad()[0][0][i][j].item<float>() != 0, i % 2 == j % 2)
            << i << ", " << j << " of " << size;
      }
    }
  }
}

}  // namespace
}  // namespace gpipe::models::amoebanet
