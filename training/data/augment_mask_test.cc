#include "training/data/augment_mask.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "training/data/random.h"

namespace gpipe::data {
namespace {

// Returns an image in which each byte differs from its neighbours, and a random
// mask.
MaskedImage masked_image(int64_t height, int64_t width) {
  const at::Tensor image = at::arange(3 * height * width)
                               .remainder(251)
                               .view({3, height, width})
                               .to(at::kByte);
  at::Tensor mask = at::zeros({1, height, width}, at::kBool);
  Random random(1);
  for (int64_t i = 0; i < height * width; ++i) {
    mask.view(-1)[i] = random.uniform() < 0.5;
  }
  return {image, mask};
}

// Returns an image that shows its mask, white on black, so that both can be
// compared after a transformation.
MaskedImage image_of_its_mask(int64_t height, int64_t width) {
  const at::Tensor mask = masked_image(height, width).mask;
  return {mask.to(at::kByte).mul(255).expand({3, height, width}), mask};
}

AugmentMaskOptions options(int64_t size, double smallest_side, bool flip) {
  AugmentMaskOptions result;
  result.size = size;
  result.smallest_side = smallest_side;
  result.flip = flip;
  return result;
}

bool equal(const MaskedSample& a, const MaskedSample& b) {
  return at::equal(a.image, b.image) && at::equal(a.mask, b.mask);
}

TEST(AugmentMaskTest, PreparesTheWholeImageInItsOwnSizeExactly) {
  MaskedImage image{at::zeros({3, 2, 2}, at::kByte),
                    at::tensor({1, 0, 0, 1}).to(at::kBool).view({1, 2, 2})};
  image.image[0] = at::tensor({0, 51, 204, 255}, at::kByte).view({2, 2});
  const MaskedSample sample = prepare(image, options(2, 0.5, true));
  EXPECT_EQ(sample.image.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(
      sample.image[0], at::tensor({-1.0F, -0.6F, 0.6F, 1.0F}).view({2, 2})));
  EXPECT_TRUE(at::equal(sample.image[1], at::full({2, 2}, -1.0F)));
  EXPECT_TRUE(at::equal(sample.mask,
                        at::tensor({1.0F, 0.0F, 0.0F, 1.0F}).view({1, 2, 2})));
}

TEST(AugmentMaskTest, ShrinksAMaskToThePixelsThatAreHalfInside) {
  // When the size is halved, four pixels in a row have the weights 1, 3, 3, 1.
  const at::Tensor mask = at::tensor({1, 1, 1, 0, 0, 0, 0, 0}).to(at::kBool);
  const MaskedImage image{at::zeros({3, 8, 8}, at::kByte),
                          mask.expand({1, 8, 8})};
  EXPECT_TRUE(
      at::equal(prepare(image, options(4, 1, false)).mask,
                at::tensor({1.0F, 1.0F, 0.0F, 0.0F}).expand({1, 4, 4})));
}

TEST(AugmentMaskTest, DependsOnTheSeedAlone) {
  const MaskedImage image = masked_image(40, 50);
  const auto given = options(32, 0.5, true);
  const MaskedSample expected = augment(image, given, 7);
  EXPECT_TRUE(equal(augment(image, given, 7), expected));
  MaskedSample on_a_thread;
  std::thread([&] { on_a_thread = augment(image, given, 7); }).join();
  EXPECT_TRUE(equal(on_a_thread, expected));
  EXPECT_FALSE(equal(augment(image, given, 8), expected));
}

TEST(AugmentMaskTest, FlipsImageAndMaskAlikeInAllFourWays) {
  const MaskedImage image = masked_image(6, 6);
  const MaskedSample straight = prepare(image, options(6, 1, true));
  const std::vector<std::vector<int64_t>> ways{{}, {1}, {2}, {1, 2}};
  std::vector<int> counts(4);
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const MaskedSample result = augment(image, options(6, 1, true), seed);
    for (size_t i = 0; i < ways.size(); ++i) {
      if (equal(result, {at::flip(straight.image, ways[i]),
                         at::flip(straight.mask, ways[i])})) {
        ++counts[i];
      }
    }
    EXPECT_TRUE(equal(augment(image, options(6, 1, false), seed), straight));
  }
  for (const int count : counts) EXPECT_NEAR(count, 100, 40);
  EXPECT_EQ(counts[0] + counts[1] + counts[2] + counts[3], 400);
}

TEST(AugmentMaskTest, CutsWindowsOfAllPlaces) {
  // Sides of 0.8 to 1 times 3 pixels are 2 (below 5/6) or 3. A window of 2x2 is
  // not resized, so it is compared exactly.
  const MaskedImage image = masked_image(3, 3);
  const at::Tensor values = image.image.to(at::kFloat).div(127.5).sub(1);
  std::set<std::pair<int64_t, int64_t>> places;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const MaskedSample result = augment(image, options(2, 0.8, false), seed);
    for (int64_t top = 0; top < 2; ++top) {
      for (int64_t left = 0; left < 2; ++left) {
        const auto cut = [&](const at::Tensor& planes) {
          return planes.narrow(1, top, 2).narrow(2, left, 2);
        };
        if (at::equal(result.image, cut(values))) {
          EXPECT_TRUE(at::equal(result.mask, cut(image.mask.to(at::kFloat))));
          places.emplace(top, left);
        }
      }
    }
  }
  EXPECT_EQ(places.size(), 4U);
}

TEST(AugmentMaskTest, ResizesImageAndMaskAlike) {
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {3, 60}, {60, 3}, {24, 24}, {45, 31}}) {
    const MaskedImage image = image_of_its_mask(height, width);
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const MaskedSample result = augment(image, options(24, 0.3, true), seed);
      ASSERT_EQ(result.image.sizes(), (std::vector<int64_t>{3, 24, 24}));
      ASSERT_EQ(result.mask.sizes(), (std::vector<int64_t>{1, 24, 24}));
      EXPECT_LE(result.image.abs().max().item<float>(), 1 + 1e-5);
      const at::Tensor is_0_or_1 =
          result.mask.eq(0).logical_or(result.mask.eq(1));
      EXPECT_TRUE(is_0_or_1.all().item<bool>());
      // Pixels at the threshold are excluded, because rounding decides there.
      const at::Tensor grey = result.image.narrow(0, 0, 1);
      const at::Tensor agree = grey.ge(0).to(at::kFloat).eq(result.mask);
      EXPECT_TRUE(agree.logical_or(grey.abs().lt(1e-5)).all().item<bool>());
    }
  }
}

TEST(AugmentMaskTest, RefusesWhatDoesNotFit) {
  const MaskedImage good = masked_image(4, 4);
  const AugmentMaskOptions usual;
  EXPECT_THROW(prepare({at::zeros({3, 4, 4}), good.mask}, usual),
               c10::ValueError);
  EXPECT_THROW(prepare({good.image, good.mask.to(at::kFloat)}, usual),
               c10::ValueError);
  EXPECT_THROW(prepare({good.image, masked_image(4, 5).mask}, usual),
               c10::ValueError);
  EXPECT_THROW(prepare(good, options(0, 1, true)), c10::ValueError);
  EXPECT_THROW(augment(good, options(4, 0, true), 1), c10::ValueError);
  EXPECT_THROW(augment(good, options(4, 1.5, true), 1), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::data
