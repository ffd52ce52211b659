#include "training/data/augment.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <vector>

#include "training/data/random.h"
#include "training/data/shapes.h"

namespace gpipe::data {
namespace {

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

}  // namespace
}  // namespace gpipe::data
