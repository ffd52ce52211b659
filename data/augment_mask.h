// From an image and its mask to what a network is trained and tested on; see
// augment.h for images with labels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "data/mask_folder.h"

namespace gpipe::data {

struct MaskedSample {
  at::Tensor image;  // float, [3, size, size], values in [-1, 1]
  at::Tensor mask;   // float, [1, size, size], 1 inside, else 0
};

struct AugmentMaskOptions {
  int64_t size = 64;
  // Training sees a window of the image, of its shape and at a place at
  // random; its sides are a random part, from here to 1, of the image's. 1: the
  // whole image.
  double smallest_side = 0.5;
  bool flip = true;  // left to right and upside down, each every second time
};

// For training: a window, resized to size x size, and flips, the same ones for
// image and mask. A pixel of a resized mask is inside if at least half of what
// it is made of was. The result depends on the arguments alone; see mix_seed()
// in random.h for a seed per image and epoch.
//
// Errors: c10::ValueError for an image that is not uint8 [3, height, width], a
// mask that is not bool [1, height, width], a size below 1, or a smallest side
// that is not in (0, 1].
MaskedSample augment(const MaskedImage& image,
                     const AugmentMaskOptions& options, uint64_t seed);

// For testing: the whole image, resized to size x size, without chance.
MaskedSample prepare(const MaskedImage& image,
                     const AugmentMaskOptions& options);

}  // namespace gpipe::data
