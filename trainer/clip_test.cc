#include "trainer/clip.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <limits>
#include <vector>

namespace gpipe::trainer {
namespace {

std::vector<at::Tensor> parameters() {
  at::manual_seed(1);
  std::vector<at::Tensor> all;
  for (const int64_t size : {3, 50, 700}) {
    all.push_back(at::zeros({size}).set_requires_grad(true));
    all.back().mutable_grad() = at::randn({size});
  }
  all.push_back(at::zeros({2}).set_requires_grad(true));  // without gradient
  return all;
}

TEST(ClipTest, HasTheBitsOfLibTorch) {
  const auto ours = parameters(), theirs = parameters();
  EXPECT_EQ(clip_gradients(ours, 0.5),
            torch::nn::utils::clip_grad_norm_(theirs, 0.5));
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_TRUE(ours[k].grad().equal(theirs[k].grad()));
  }
}

TEST(ClipTest, ANormBelowTheMaximumOrWithoutOneStays) {
  for (const double most : {1e6, std::numeric_limits<double>::infinity()}) {
    const auto clipped = parameters(), before = parameters();
    EXPECT_GT(clip_gradients(clipped, most), 0);
    EXPECT_TRUE(clipped[2].grad().equal(before[2].grad()));
  }
}

TEST(ClipTest, WithoutGradientsItIsZero) {
  EXPECT_EQ(clip_gradients({at::zeros({2})}, 1), 0);
}

}  // namespace
}  // namespace gpipe::trainer
