// Transforms stored images into the inputs for training and testing.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace gpipe::data {

// How augment() selects a part of the image.
enum class Crop {
  kNone,     // the whole image, resized if it has another size
  kPadded,   // a random window after padding the image with black (CIFAR)
  kResized,  // a window of random area and shape, resized (ImageNet)
};

// Options of augment() and prepare().
struct AugmentOptions {
  int64_t size = 224;  // the result is [3, size, size]
  Crop crop = Crop::kResized;
  int64_t padding = 4;          // pixels added on each side with kPadded
  double smallest_area = 0.08;  // of the image's area, with kResized
  bool flip = true;             // mirror left to right with probability 1/2
  // Mean and standard deviation of ImageNet, for values in [0, 1].
  std::array<float, 3> mean{0.485F, 0.456F, 0.406F};
  std::array<float, 3> deviation{0.229F, 0.224F, 0.225F};
};

// Crops, flips and normalises an image for training. Returns float [3, size,
// size]. The result depends only on `image`, `options` and `seed`. mix_seed()
// in random.h makes a seed per image and epoch.
//
// Throws c10::ValueError if `image` is not uint8 [3, height, width] or is
// empty, or if the size is below 1. Thread-safe.
at::Tensor augment(const at::Tensor& image, const AugmentOptions& options,
                   uint64_t seed);

// Resizes and normalises an image for testing, without randomness. With
// kResized the shorter side is resized to 8/7 of `size` (256 for 224) and the
// centre is cut out, as is usual for ImageNet. Otherwise the whole image is
// resized to size x size if necessary. Same errors as augment(). Thread-safe.
at::Tensor prepare(const at::Tensor& image, const AugmentOptions& options);

}  // namespace gpipe::data
