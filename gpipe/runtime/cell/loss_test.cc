#include "gpipe/runtime/cell/loss.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace gpipe::internal {
namespace {

using torch::Tensor;

TEST(LossFunction, KnowsByItsTypeWhetherItIsWeighted) {
  const LossFunction mean = [](Value output, Value target) {
    return (output.tensors()[0] - target.tensors()[0]).sum();
  };
  const LossFunction weighted = [](Value output, Value) {
    return WeightedLoss{output.tensors()[0].sum(), torch::tensor(4), {}};
  };
  const Value output = Value::wrap(torch::full({2}, 3.f));
  const Value target = Value::wrap(torch::ones({2}));
  EXPECT_FALSE(mean.weighted());
  EXPECT_EQ(mean(output, target).sum.item<float>(), 4);
  EXPECT_FALSE(mean(output, target).weight.defined());
  EXPECT_TRUE(weighted.weighted());
  EXPECT_EQ(weighted(output, target).weight.item<int64_t>(), 4);
}

}  // namespace
}  // namespace gpipe::internal
