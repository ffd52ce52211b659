// Transforms stored images into the inputs for training and testing.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "training/data/mask_folder.h"

namespace gpipe::data {

// ---- Images with labels

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

// ---- Images with masks

// An input for segmentation and its target.
struct MaskedSample {
  at::Tensor image;  // float, [3, size, size], values in [-1, 1]
  at::Tensor mask;   // float, [1, size, size], 1 inside, else 0
};

// Options of augment() and prepare() for masks.
struct AugmentMaskOptions {
  int64_t size = 64;
  // Smallest side of the window that training uses, as a part of the image's
  // side. The window has the image's shape, a random place, and sides between
  // this part and 1. With 1 the window is the whole image.
  double smallest_side = 0.5;
  bool flip = true;  // left to right and upside down, each with probability 1/2
};

// Cuts a random window for training, resizes it to size x size and flips it, in
// the same way for image and mask. A pixel of a resized mask is inside if at
// least half of its source pixels, by weight, were inside. The result depends
// only on the arguments. mix_seed() in random.h makes a seed per image and
// epoch.
//
// Throws c10::ValueError if the image is not uint8 [3, height, width] or is
// empty, if the mask is not bool [1, height, width], if the size is below 1, or
// if `smallest_side` is not in (0, 1]. Thread-safe.
MaskedSample augment(const MaskedImage& image,
                     const AugmentMaskOptions& options, uint64_t seed);

// Resizes the whole image to size x size for testing, without randomness. Same
// errors as augment(). Thread-safe.
MaskedSample prepare(const MaskedImage& image,
                     const AugmentMaskOptions& options);

}  // namespace gpipe::data
