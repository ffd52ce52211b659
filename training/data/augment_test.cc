#include "training/data/augment.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "training/data/drawn.h"
#include "training/data/random.h"

namespace gpipe::data {
namespace {

// ---- Images with labels

at::Tensor test_image(int64_t height, int64_t width) {
  return at::arange(3 * height * width)
      .remainder(251)
      .view({3, height, width})
      .to(at::kByte);
}

// Returns options without normalisation: values are pixels / 255.
AugmentOptions raw(Crop crop, int64_t size) {
  AugmentOptions options;
  options.size = size;
  options.crop = crop;
  options.mean = {0, 0, 0};
  options.deviation = {1, 1, 1};
  return options;
}

TEST(AugmentTest, DependsOnTheSeedAlone) {
  const at::Tensor image = test_image(40, 50);
  for (const Crop crop : {Crop::kNone, Crop::kPadded, Crop::kResized}) {
    const AugmentOptions options = raw(crop, 32);
    const at::Tensor expected = augment(image, options, 7);
    EXPECT_TRUE(at::equal(augment(image, options, 7), expected));
    at::Tensor on_a_thread;
    std::thread([&] { on_a_thread = augment(image, options, 7); }).join();
    EXPECT_TRUE(at::equal(on_a_thread, expected));
  }
}

TEST(AugmentTest, DiffersBetweenSeeds) {
  const at::Tensor image = test_image(40, 50);
  const AugmentOptions options = raw(Crop::kResized, 32);
  EXPECT_FALSE(
      at::equal(augment(image, options, 1), augment(image, options, 2)));
}

TEST(AugmentTest, PaddedCropIsAWindowOfTheImageWithABlackBorder) {
  const at::Tensor image = test_image(8, 8);
  AugmentOptions options = raw(Crop::kPadded, 8);
  options.padding = 2;
  options.flip = false;
  const at::Tensor padded =
      at::constant_pad_nd(image.to(at::kFloat), {2, 2, 2, 2}).div(255);
  std::set<std::pair<int64_t, int64_t>> places;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const at::Tensor result = augment(image, options, seed);
    for (int64_t top = 0; top < 5; ++top) {
      for (int64_t left = 0; left < 5; ++left) {
        const at::Tensor window = padded.narrow(1, top, 8).narrow(2, left, 8);
        if (at::allclose(result, window)) places.emplace(top, left);
      }
    }
  }
  EXPECT_EQ(places.size(), 25U);
}

TEST(AugmentTest, FlipsEverySecondTime) {
  const at::Tensor image = test_image(6, 6);
  const at::Tensor pixels = image.to(at::kFloat).div(255);
  int flipped = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    const at::Tensor result = augment(image, raw(Crop::kNone, 6), seed);
    const bool is_flipped = at::allclose(result, at::flip(pixels, {2}));
    EXPECT_TRUE(is_flipped || at::allclose(result, pixels));
    if (is_flipped) ++flipped;
  }
  EXPECT_NEAR(flipped, 500, 80);
}

TEST(AugmentTest, MakesTheAskedSizeOfEveryImage) {
  for (const Crop crop : {Crop::kNone, Crop::kPadded, Crop::kResized}) {
    for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {3, 200}, {200, 3}, {24, 24}, {100, 80}}) {
      const at::Tensor image = test_image(height, width);
      const std::vector<int64_t> expected{3, 24, 24};
      EXPECT_EQ(augment(image, raw(crop, 24), 5).sizes(), expected);
      EXPECT_EQ(prepare(image, raw(crop, 24)).sizes(), expected);
    }
  }
}

// The whole image, resized, would have 24 * 8 / 7 * 40000 * 13 pixels.
TEST(AugmentTest, PreparesTheMiddleOfALongImage) {
  const at::Tensor image = test_image(2, 40000);
  const at::Tensor middle = image.narrow(2, (40000 - 32) / 2, 32);
  for (const bool turned : {false, true}) {
    const auto turn = [&](const at::Tensor& each) {
      return turned ? each.transpose(1, 2).contiguous() : each;
    };
    EXPECT_TRUE(at::equal(prepare(turn(image), raw(Crop::kResized, 24)),
                          prepare(turn(middle), raw(Crop::kResized, 24))));
  }
}

TEST(AugmentTest, NormalisesEveryChannel) {
  AugmentOptions options = raw(Crop::kNone, 2);
  options.mean = {0, 0.2F, 1};
  options.deviation = {1, 0.5F, 0.25F};
  const at::Tensor white = at::full({3, 2, 2}, 255, at::kByte);
  const at::Tensor result = prepare(white, options);
  EXPECT_TRUE(at::allclose(result.select(0, 0), at::full({2, 2}, 1.0F)));
  EXPECT_TRUE(at::allclose(result.select(0, 1), at::full({2, 2}, 1.6F)));
  EXPECT_TRUE(at::allclose(result.select(0, 2), at::full({2, 2}, 0.0F)));
}

TEST(AugmentTest, RefusesWhatIsNoImage) {
  EXPECT_THROW(prepare(at::zeros({3, 4, 4}), AugmentOptions()),
               c10::ValueError);
  EXPECT_THROW(prepare(at::zeros({1, 4, 4}, at::kByte), AugmentOptions()),
               c10::ValueError);
}

TEST(RandomTest, PermutationHasEveryNumberOnce) {
  auto order = permutation(100, 3);
  EXPECT_EQ(order, permutation(100, 3));
  EXPECT_NE(order, permutation(100, 4));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST(RandomTest, IsSplitMix64) {
  // The first output for seed 0 of the authors' reference code.
  EXPECT_EQ(Random(0).next(), 0xE220A8397B1DCDAFU);
}

TEST(ShapesTest, IsTheSameForTheSameSeed) {
  const Shapes shapes(16, 20, /*seed=*/1);
  EXPECT_EQ(shapes.classes().size(), 8U);
  EXPECT_EQ(shapes.get(11).label, 3);
  EXPECT_TRUE(at::equal(shapes.get(5).image, Shapes(16, 20, 1).get(5).image));
  EXPECT_FALSE(at::equal(shapes.get(5).image, Shapes(16, 20, 2).get(5).image));
}

// ---- Images with masks

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

TEST(DrawDiscTest, DrawsRowColumnAndRadiusInThisOrder) {
  constexpr int64_t kSide = 96;
  for (const uint64_t seed : {1, 2, 3}) {
    Random random(seed);
    const double y = random.uniform(0, kSide), x = random.uniform(0, kSide);
    const double radius = random.uniform(8, 32);
    const at::Tensor mask = draw_disc(seed).mask;
    for (int64_t i = 0; i < kSide; ++i) {
      for (int64_t j = 0; j < kSide; ++j) {
        const double distance = std::hypot(i - y, j - x);
        if (std::abs(distance - radius) < 1e-3) continue;
        ASSERT_EQ(mask[0][i][j].item<bool>(), distance < radius)
            << "row " << i << ", column " << j;
      }
    }
  }
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
