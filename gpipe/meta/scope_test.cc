#include "gpipe/meta/scope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <thread>

namespace gpipe {
namespace {

using torch::Tensor;
using Extent = MetaScope::Extent;

TEST(MetaScopeTest, SendsNewTensorsToMeta) {
  const MetaScope scope(Extent::kNewTensors);
  for (const Tensor& tensor :
       {torch::empty({2, 3}), torch::zeros({2, 3}), torch::randn({2, 3}),
        torch::full({2, 3}, 1.5), torch::arange(6).view({2, 3}),
        torch::eye(3).slice(0, 0, 2), torch::rand({2, 3}), torch::ones({2, 3}),
        at::empty({2, 3}), at::empty_strided({2, 3}, {1, 2})}) {
    EXPECT_TRUE(tensor.is_meta());
    EXPECT_EQ(tensor.sizes(), (at::IntArrayRef{2, 3}));
  }
}

TEST(MetaScopeTest, LeavesTensorsThatNameADeviceOrHaveValues) {
  const Tensor before = torch::ones({3});
  const MetaScope scope(Extent::kNewTensors);
  EXPECT_TRUE(torch::zeros({2}, at::kCPU).is_cpu());
  EXPECT_TRUE(torch::tensor({1.0, 2.0})
                  .equal(torch::tensor(
                      {1.0, 2.0}, torch::TensorOptions().device(at::kCPU))));
  EXPECT_EQ(before.sum().item<float>(), 3);
  EXPECT_TRUE(torch::empty_like(before).is_cpu());
  EXPECT_TRUE(before.new_zeros({2}).is_cpu());
}

TEST(MetaScopeTest, EndsWithTheScope) {
  { const MetaScope scope(Extent::kNewTensors); }
  EXPECT_TRUE(torch::zeros({2}).is_cpu());
  {
    const MetaScope outer(Extent::kNewTensors);
    { const MetaScope inner(Extent::kAllTensors); }
    EXPECT_TRUE(torch::zeros({2}).is_meta());
  }
  EXPECT_TRUE(torch::zeros({2}).is_cpu());
}

TEST(MetaScopeTest, IsOfItsThread) {
  const MetaScope scope(Extent::kNewTensors);
  std::thread([] { EXPECT_TRUE(torch::zeros({2}).is_cpu()); }).join();
}

TEST(MetaScopeTest, LooksAtAllTensorsAndTouchesNone) {
  Tensor real = torch::ones({3, 4});
  torch::nn::Linear linear(4, 5);
  torch::nn::BatchNorm1d norm(5);
  const Tensor weight = linear->weight.detach().clone();
  {
    const MetaScope scope(Extent::kAllTensors);
    const Tensor y = norm(linear(real));
    EXPECT_TRUE(y.is_meta());
    EXPECT_EQ(y.sizes(), (at::IntArrayRef{3, 5}));
    real.add_(1);
    EXPECT_TRUE((real + torch::ones({4}, real.options())).is_meta());
    EXPECT_TRUE(real.to(at::kCPU, at::kDouble).is_meta());
    EXPECT_TRUE(at::cat({real, real}).is_meta());
    torch::NoGradGuard no_grad;
    linear->weight.zero_();
  }
  EXPECT_TRUE(real.equal(torch::ones({3, 4})));
  EXPECT_TRUE(linear->weight.equal(weight));
  EXPECT_EQ(norm->running_mean.abs().sum().item<float>(), 0);
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
}

TEST(MetaScopeTest, KeepsTheTypesOfMixedExpressions) {
  const Tensor integers = torch::ones({3}, at::kInt);
  const Tensor half = torch::ones({3}, at::kHalf);
  const MetaScope scope(Extent::kAllTensors);
  EXPECT_EQ((integers + 1.5).dtype(), at::kFloat);
  EXPECT_EQ((integers * 2).dtype(), at::kInt);
  EXPECT_EQ((half * 2.5).dtype(), at::kHalf);
}

TEST(MetaScopeTest, AnswersWhatIsAskedOfRealTensors) {
  const Tensor real = torch::full({}, 3.0);
  const MetaScope scope(Extent::kAllTensors);
  EXPECT_EQ(real.item<double>(), 3.0);
  EXPECT_TRUE(real.equal(real));
  EXPECT_THROW((real + 1).item<double>(), c10::Error);
}

TEST(MetaScopeTest, HasOneStandInForATensor) {
  const Tensor a = torch::ones({3}), b = torch::ones({3});
  const MetaScope scope(Extent::kAllTensors);
  EXPECT_TRUE(a.view({3, 1}).is_alias_of(a.view({1, 3})));
  EXPECT_FALSE(a.view({3, 1}).is_alias_of(b.view({1, 3})));
}

}  // namespace
}  // namespace gpipe
