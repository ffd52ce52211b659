// From stored images to what a network is trained and tested on.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace gpipe::data {

enum class Crop {
  kNone,     // the whole image, resized if it has another size
  kPadded,   // a place at random in the image with a black border (CIFAR)
  kResized,  // a part of random area and shape, resized (ImageNet)
};

struct AugmentOptions {
  int64_t size = 224;  // the result is [3, size, size]
  Crop crop = Crop::kResized;
  int64_t padding = 4;          // kPadded: width of the border
  double smallest_area = 0.08;  // kResized: of the image's
  bool flip = true;             // left to right, every second time
  // Of ImageNet, for values in [0, 1].
  std::array<float, 3> mean{0.485F, 0.456F, 0.406F};
  std::array<float, 3> deviation{0.229F, 0.224F, 0.225F};
};

// For training: crops, flips and normalises. The result, float [3, size,
// size], depends on `image`, `options` and `seed` alone; see mix_seed() in
// random.h for a seed per image and epoch.
at::Tensor augment(const at::Tensor& image, const AugmentOptions& options,
                   uint64_t seed);

// For testing: without chance. With kResized the shorter side is resized to
// 8/7 of `size` (256 for 224) and the middle cut out, as in ImageNet's usual
// test; else the whole image is resized to size x size if need be.
at::Tensor prepare(const at::Tensor& image, const AugmentOptions& options);

}  // namespace gpipe::data
