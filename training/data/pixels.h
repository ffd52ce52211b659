// Crops and resizes images and masks, and checks images. All functions are
// thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gpipe::data {

// A rectangle of an image, in pixels.
struct Window {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

// Returns a view of the window. `planes`: [channels, height, width]. The window
// must lie inside of the planes.
at::Tensor cut(const at::Tensor& planes, const Window& window);

// Resizes planes by bilinear interpolation. `planes`: uint8 or bool, [channels,
// any height, any width]. Returns float [channels, `height`, `width`] with
// values on the same scale. When it shrinks the planes, a pixel is the mean,
// weighted by a triangle, of all its source pixels. Values do not change if the
// size is the same.
at::Tensor resize(const at::Tensor& planes, int64_t height, int64_t width);

// Throws c10::ValueError unless `image` is uint8 [3, height, width] and not
// empty.
void check_image(const at::Tensor& image);

// Throws c10::ValueError if `size`, the side of images in pixels, is below 1.
void check_size(int64_t size);

}  // namespace gpipe::data
