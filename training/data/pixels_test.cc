#include "training/data/pixels.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "training/testing/image_files.h"

namespace gpipe::data {
namespace {

using ::testing::HasSubstr;

TEST(PixelsTest, CutsAWindowOutOfEveryPlane) {
  const at::Tensor planes = at::arange(24).view({2, 3, 4});
  EXPECT_TRUE(at::equal(cut(planes, {1, 2, 2, 1}),
                        at::tensor({6, 10, 18, 22}).view({2, 2, 1})));
  EXPECT_TRUE(cut(planes, {1, 2, 2, 1}).is_alias_of(planes));
}

TEST(PixelsTest, KeepsValuesInTheSameSize) {
  const at::Tensor bytes = at::tensor({0, 1, 254, 255}, at::kByte);
  EXPECT_TRUE(
      at::equal(resize(bytes.view({1, 2, 2}), 2, 2),
                at::tensor({0.0F, 1.0F, 254.0F, 255.0F}).view({1, 2, 2})));
}

TEST(PixelsTest, AveragesWhatShrinks) {
  // When the size is halved, four pixels in a row have the weights 1, 3, 3, 1,
  // and three at the edge 3, 3, 1.
  const at::Tensor row = at::tensor({56, 0, 0, 0, 0, 0, 0, 112}, at::kByte);
  EXPECT_TRUE(
      at::allclose(resize(row.expand({3, 8, 8}), 4, 4),
                   at::tensor({24.0F, 0.0F, 0.0F, 48.0F}).expand({3, 4, 4})));
}

TEST(PixelsTest, InterpolatesWhatGrows) {
  const at::Tensor mask = at::tensor({0, 1}).to(at::kBool);
  EXPECT_TRUE(
      at::allclose(resize(mask.expand({1, 2, 2}), 4, 4),
                   at::tensor({0.0F, 0.25F, 0.75F, 1.0F}).expand({1, 4, 4})));
}

TEST(PixelsTest, RefusesWhatIsNoImage) {
  check_image(at::zeros({3, 1, 1}, at::kByte));
  for (const at::Tensor& image :
       {at::zeros({3, 2, 2}), at::zeros({1, 2, 2}, at::kByte),
        at::zeros({3, 2}, at::kByte), at::zeros({3, 0, 2}, at::kByte)}) {
    EXPECT_THAT(error_of([&] { check_image(image); }),
                HasSubstr("expected an image of bytes, [3, height, width]"));
  }
  check_size(1);
  EXPECT_EQ(error_of([] { check_size(0); }), "cannot make images of 0x0");
}

}  // namespace
}  // namespace gpipe::data
