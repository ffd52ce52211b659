#include "gpipe/runtime/recompute/outline.h"

#include <gtest/gtest.h>
#include <torch/types.h>

namespace gpipe::internal {
namespace {

TEST(Outline, IsEqualForEqualSizesAndDtypes) {
  const Outline outline(torch::ones({2, 3}));
  EXPECT_EQ(outline, Outline(torch::zeros({2, 3}).requires_grad_()));
  EXPECT_NE(outline, Outline(torch::zeros({3, 2})));
  EXPECT_NE(outline, Outline(torch::zeros({2, 3}, torch::kLong)));
  EXPECT_NE(outline, Outline(torch::Tensor()));
}

TEST(Outline, ComparesRequiresGradIfWanted) {
  const auto outline = [](const torch::Tensor& tensor) {
    return Outline(tensor, /*with_grad=*/true);
  };
  const torch::Tensor tensor = torch::ones({2, 3});
  EXPECT_EQ(outline(tensor), outline(tensor + 1));
  EXPECT_NE(outline(tensor), outline(tensor.clone().requires_grad_()));
  EXPECT_EQ(outline(torch::Tensor()), outline(torch::Tensor()));
}

TEST(Outline, HasAText) {
  const torch::Tensor tensor = torch::ones({2, 3}).requires_grad_();
  EXPECT_EQ(Outline(tensor).text(), "[2, 3] Float");
  EXPECT_EQ(Outline(tensor, /*with_grad=*/true).text(),
            "[2, 3] Float that requires grad");
  EXPECT_EQ(Outline(torch::Tensor()).text(), "undefined");
}

}  // namespace
}  // namespace gpipe::internal
