#include "gpipe/runtime/autograd/grad_norm.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "gpipe/testing/devices.h"

namespace gpipe::internal {
namespace {

using at::Tensor;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns parameters with gradients, except for the third one, on several
// devices. The last two are on the first device again, as with stages placed in
// a V.
std::vector<Tensor> parameters(const std::vector<c10::Device>& devices) {
  at::manual_seed(1);
  std::vector<Tensor> all;
  for (const int64_t size : {3, 50, 2, 700, 1, 31}) {
    const c10::Device device = devices[std::min(all.size(), 5 - all.size())];
    const Tensor grad = at::randn({size});
    all.push_back(at::zeros({size}, device).set_requires_grad(true));
    if (size != 2) all.back().mutable_grad() = grad.to(device);
  }
  return all;
}

std::vector<Tensor> on(const c10::Device& device) {
  return parameters(std::vector<c10::Device>(3, device));
}

void expect_same_grads(const std::vector<Tensor>& mine,
                       const std::vector<Tensor>& theirs) {
  for (std::size_t k = 0; k < mine.size(); ++k) {
    ASSERT_EQ(mine[k].grad().defined(), theirs[k].grad().defined());
    if (!mine[k].grad().defined()) continue;
    EXPECT_TRUE(mine[k].grad().cpu().equal(theirs[k].grad().cpu())) << k;
  }
}

TEST(ClipGradNorm, OnSeveralDevicesHasTheBitsOfLibTorchOnOne) {
  for (const double type : {2.0, 1.0, 0.0, 3.0, kInfinity, -kInfinity}) {
    for (const double most : {0.5, 1e9}) {
      const auto mine = parameters(testing::devices(3));
      const auto theirs = on(testing::reference_device());
      EXPECT_EQ(clip_grad_norm(mine, most, type),
                torch::nn::utils::clip_grad_norm_(theirs, most, type))
          << "norm " << type << ", at most " << most;
      expect_same_grads(mine, theirs);
    }
  }
}

TEST(ClipGradNorm, OfMixedTypesHasTheBitsOfLibTorch) {
  auto mine = on(testing::device()), theirs = on(testing::reference_device());
  for (auto* const all : {&mine, &theirs}) {
    const Tensor& first = all->front();
    all->push_back(
        at::zeros({5}, first.options().dtype(at::kDouble)).requires_grad_());
    all->back().mutable_grad() = at::ones({5}, all->back().options()) / 3;
  }
  EXPECT_EQ(clip_grad_norm(mine, 0.5, 2),
            torch::nn::utils::clip_grad_norm_(theirs, 0.5));
  expect_same_grads(mine, theirs);
}

// Returns parameters with the gradients 3 in row 1 (as 1 + 2, not coalesced)
// and 4 in row 2 of 5 rows, sparse or dense. Their norm is 5.
std::vector<Tensor> with_sparse(bool sparse) {
  const Tensor rows = at::tensor({1, 2, 1}, at::kLong).view({1, 3});
  const Tensor values = at::tensor({1.0, 4.0, 2.0}, at::kDouble).view({3, 1});
  const Tensor grad = at::sparse_coo_tensor(rows, values, {5, 1});
  Tensor parameter =
      at::zeros({5, 1}, grad.options().layout(at::kStrided)).requires_grad_();
  parameter.mutable_grad() = sparse ? grad : grad.to_dense();
  return {parameter};
}

TEST(ClipGradNorm, ScalesSparseGradientsAsDenseOnes) {
  for (const double type : {2.0, 1.0, 0.0, kInfinity}) {
    for (const double most : {0.5, 1e9}) {
      const auto sparse = with_sparse(true), dense = with_sparse(false);
      const double norm = clip_grad_norm(sparse, most, type);
      EXPECT_EQ(norm, clip_grad_norm(dense, most, type)) << "norm " << type;
      EXPECT_TRUE(sparse[0].grad().is_sparse());
      // 1/10 + 2/10 is not 3/10 in binary.
      EXPECT_TRUE(at::allclose(sparse[0].grad().to_dense(), dense[0].grad(),
                               /*rtol=*/1e-15, /*atol=*/0))
          << "norm " << type << ", at most " << most;
    }
  }
  EXPECT_EQ(clip_grad_norm(with_sparse(true), 0.5, 2.0), 5.0);
}

TEST(ClipGradNorm, OfASparseGradientWithoutValuesIsZero) {
  Tensor parameter = at::zeros({5, 1}).requires_grad_();
  parameter.mutable_grad() =
      at::sparse_coo_tensor({5, 1}, parameter.options().layout(at::kSparse));
  for (const double type : {2.0, kInfinity}) {
    EXPECT_EQ(clip_grad_norm({parameter}, 1.0, type), 0.0);
  }
}

TEST(ClipGradNorm, AParameterThatIsThereTwiceCountsOnce) {
  auto twice = on(testing::device());
  const auto once = on(testing::device());
  twice.push_back(twice.front());
  EXPECT_EQ(clip_grad_norm(twice, 0.5, 2), clip_grad_norm(once, 0.5, 2));
  expect_same_grads(once, twice);
}

TEST(ClipGradNorm, AnInfiniteMaximumLeavesEvenInfiniteGradientsAlone) {
  auto clipped = on(testing::device()), before = on(testing::device());
  clipped[1].mutable_grad()[7] = kInfinity;
  before[1].mutable_grad()[7] = kInfinity;
  EXPECT_EQ(clip_grad_norm(clipped, kInfinity, 2), kInfinity);
  expect_same_grads(clipped, before);
}

TEST(ClipGradNorm, WithoutGradientsIsZero) {
  EXPECT_EQ(clip_grad_norm({}, 1, 2), 0);
  EXPECT_EQ(clip_grad_norm({at::zeros({2})}, 1, 2), 0);
}

}  // namespace
}  // namespace gpipe::internal
