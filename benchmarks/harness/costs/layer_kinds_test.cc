#include "benchmarks/harness/costs/layer_kinds.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>

#include <stdexcept>

#include "gpipe/meta.h"

namespace gpipe::benchmarks {
namespace {

torch::nn::Sequential mlp(int64_t depth) {
  torch::nn::Sequential model;
  for (int64_t k = 0; k < depth; ++k) {
    model->push_back(torch::nn::Linear(4, 4));
    model->push_back(torch::nn::ReLU());
  }
  return model;
}

TEST(LayerKinds, AreEqualForLayersThatDoTheSameOnTheSameShapes) {
  const auto kinds = layer_kinds(mlp(3), at::zeros({2, 4}));
  ASSERT_EQ(kinds.size(), 6u);
  EXPECT_EQ(kinds[2], kinds[4]);
  EXPECT_EQ(kinds[1], kinds[3]);
  EXPECT_NE(kinds[2], kinds[3]);
}

TEST(LayerKinds, TheFirstLayerIsLikeNoOther) {
  const auto kinds = layer_kinds(mlp(2), at::zeros({2, 4}));
  EXPECT_NE(kinds[0], kinds[2]);
}

TEST(LayerKinds, DifferByTheShapeThatComesIn) {
  EXPECT_NE(layer_kinds(mlp(2), at::zeros({2, 4}))[2],
            layer_kinds(mlp(2), at::zeros({3, 4}))[2]);
}

TEST(LayerKinds, AreThoseOfAModelWithoutMemoryToo) {
  const auto real = layer_kinds(mlp(2), at::zeros({2, 4}));
  const MetaGuard meta;
  EXPECT_EQ(layer_kinds(mlp(2), at::zeros({2, 4})), real);
}

TEST(LayerKinds, AShallowModelCoversADeepOneOnceEachKindIsThere) {
  const auto deep = layer_kinds(mlp(9), at::zeros({2, 4}));
  EXPECT_FALSE(covers(layer_kinds(mlp(1), at::zeros({2, 4})), deep));
  EXPECT_TRUE(covers(layer_kinds(mlp(2), at::zeros({2, 4})), deep));
}

TEST(TimesByKind, AreTheMediansOfTheKind) {
  const auto times = times_by_kind({"b", "a"}, {"a", "b", "b", "b"},
                                   {{1, 5}, {2, 4}, {4, 90}, {50, 8}});
  ASSERT_EQ(times.size(), 2u);
  EXPECT_EQ(times[0].forward, 4);
  EXPECT_EQ(times[0].backward, 8);
  EXPECT_EQ(times[1].forward, 1);
  EXPECT_EQ(times[1].backward, 5);
}

TEST(TimesByKind, RefusesAKindThatWasNotTimed) {
  EXPECT_THROW(times_by_kind({"c"}, {"a"}, {{1, 5}}), std::invalid_argument);
  EXPECT_THROW(times_by_kind({"a"}, {"a"}, {}), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::benchmarks
