#include "gpipe/runtime/cell/recompute_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;
namespace nn = torch::nn;

TEST(VersionsOf, CountChangesInPlace) {
  Tensor changed = torch::ones({2}), other = torch::ones({2});
  changed.add_(1);
  EXPECT_THAT(versions_of(std::vector<Tensor>{changed, other, Tensor()}),
              ElementsAre(1, 0, -1));
  EXPECT_THAT(versions_of(std::vector<Activation>{{changed, false, false}}),
              ElementsAre(1));
}

TEST(FrozenOf, AreTheParametersWithoutGradient) {
  nn::Linear linear(2, 2);
  linear->weight.set_requires_grad(false);
  linear->eval();
  std::vector<Layer> layers(1);
  layers[0].module = nn::AnyModule(linear);
  layers[0].name = "0";
  const auto parts = partition(layers, {1}, {c10::Device(c10::kCPU)});
  const auto frozen = frozen_of(parts[0]);
  ASSERT_EQ(frozen.size(), 1u);
  EXPECT_TRUE(frozen[0].first.is_same(linear->weight));
  EXPECT_EQ(frozen[0].second, version_of(linear->weight));
  EXPECT_THAT(training_of(parts[0]), ElementsAre(false));
}

TEST(OutlinesOf, DifferInShapeDtypeAndRequiresGrad) {
  const Tensor tensor = torch::ones({2, 3});
  const auto outline = [](const Tensor& each) {
    return outlines_of({each}).front();
  };
  EXPECT_TRUE(outline(tensor) == outline(torch::zeros({2, 3})));
  EXPECT_FALSE(outline(tensor) == outline(torch::ones({3, 2})));
  EXPECT_FALSE(outline(tensor) == outline(tensor.to(torch::kDouble)));
  EXPECT_FALSE(outline(tensor) == outline(tensor.clone().requires_grad_()));
  EXPECT_FALSE(outline(tensor) == outline(Tensor()));
}

}  // namespace
}  // namespace gpipe::internal
