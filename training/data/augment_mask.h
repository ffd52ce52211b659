// Transforms an image and its mask into the inputs for training and testing.
// See augment.h for images with labels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "training/data/mask_folder.h"

namespace gpipe::data {

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
