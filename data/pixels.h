// What is done to an image on its way into a network, with a label or a mask.
// Threads: these are all pure functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gpipe::data {

// A rectangle of an image, in pixels.
struct Window {
  int64_t top = 0, left = 0, height = 0, width = 0;
};

// `planes`: [channels, height, width]. A view of what is in the window, which
// lies inside of them.
at::Tensor cut(const at::Tensor& planes, const Window& window);

// `planes`: [channels, height, width], of bytes or bools; float [channels,
// `height`, `width`] comes back, with values on the same scale. Bilinear; where
// it shrinks, a pixel is a mean, weighted by a triangle, of all that become it.
// In the size that they have, values stay as they are.
at::Tensor resize(const at::Tensor& planes, int64_t height, int64_t width);

// c10::ValueError unless `image` is uint8 [3, height, width] with a pixel.
void check_image(const at::Tensor& image);

// c10::ValueError unless images of `size` x `size` can be made: size > 0.
void check_size(int64_t size);

}  // namespace gpipe::data
