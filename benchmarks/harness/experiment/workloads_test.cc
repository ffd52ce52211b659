#include "benchmarks/harness/experiment/workloads.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(WorkloadsTest, HaveTheShapesOfTheirText) {
  const Workload images = images_of_classes(8, 5);
  EXPECT_THAT(images.input(2).sizes(), ElementsAre(2, 3, 8, 8));
  EXPECT_THAT(images.target(2).sizes(), ElementsAre(2));
  EXPECT_LT(images.target(1000).max().item<int64_t>(), 5);

  const Workload masks = images_with_masks(8, Mask::kOnes);
  EXPECT_THAT(masks.target(2).sizes(), ElementsAre(2, 1, 8, 8));
  EXPECT_EQ(masks.target(2).min().item<float>(), 1);
  const Workload random = images_with_masks(8, Mask::kRandom);
  EXPECT_LT(random.target(2).min().item<float>(), 1);

  const Workload text = tokens(7, 5);
  EXPECT_THAT(text.input(2).sizes(), ElementsAre(2, 7));
  EXPECT_EQ(text.target(2).scalar_type(), at::kLong);
}

TEST(WorkloadsTest, EqualLogitsHaveTheEntropyOfTheClasses) {
  const float expected = std::log(4.0F);
  EXPECT_FLOAT_EQ(
      cross_entropy(at::zeros({3, 4}), at::zeros({3}, at::kLong)).item<float>(),
      expected);
  EXPECT_FLOAT_EQ(
      cross_entropy(at::zeros({2, 3, 4}), at::zeros({2, 3}, at::kLong))
          .item<float>(),
      expected);
}

TEST(WorkloadsTest, AMaskThatIsNotForeseenCostsABitPerPixel) {
  EXPECT_FLOAT_EQ(
      mask_loss(at::zeros({2, 1, 4, 4}), at::full({2, 1, 4, 4}, 0.25))
          .item<float>(),
      std::log(2.0F));
}

TEST(WorkloadsTest, ReducedRowsDifferInThePipelineAlone) {
  const auto rows = reduced(
      {{"baseline", 0, 96, 1, {}, Checkpoint::kNever, {1.0}, {}, ""},
       {"n2m1", 2, 80, 1, {1, 2}, Checkpoint::kAlways, {1.0}, {}, ""},
       {"n2m32", 2, 1280, 32, {2, 1}, Checkpoint::kExceptLast, {}, {}, ""}},
      16, 4);
  for (const auto& row : rows) {
    EXPECT_EQ(row.batch_size, 16);
    EXPECT_THAT(row.balance, IsEmpty());
  }
  EXPECT_EQ(rows[0].chunks, 1);
  EXPECT_EQ(rows[1].chunks, 1);
  EXPECT_EQ(rows[2].chunks, 4);
  EXPECT_EQ(rows[1].checkpoint, Checkpoint::kAlways);
}

}  // namespace
}  // namespace gpipe::benchmarks
