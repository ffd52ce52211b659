#include "training/data/augment.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "training/data/pixels.h"
#include "training/data/random.h"

namespace gpipe::data {
namespace {

at::Tensor normalise(const at::Tensor& pixels, const AugmentOptions& options) {
  const at::Tensor mean = at::tensor(options.mean).mul_(255).view({3, 1, 1});
  const at::Tensor deviation =
      at::tensor(options.deviation).mul_(255).view({3, 1, 1});
  return pixels.sub(mean).div_(deviation).contiguous();
}

// Returns a window of a random area, at least `smallest_area` of the image, and
// a shape between 3:4 and 4:3, as in Szegedy et al. (2014). After ten tries
// without a fit it returns the square in the centre.
Window random_window(int64_t height, int64_t width, double smallest_area,
                     Random* random) {
  const auto area = static_cast<double>(height * width);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double wanted = area * random->uniform(smallest_area, 1);
    const double ratio =
        std::exp(random->uniform(std::log(3.0 / 4), std::log(4.0 / 3)));
    const int64_t w = std::llround(std::sqrt(wanted * ratio));
    const int64_t h = std::llround(std::sqrt(wanted / ratio));
    if (w < 1 || h < 1 || w > width || h > height) continue;
    return {random->below(height - h + 1), random->below(width - w + 1), h, w};
  }
  const int64_t side = std::min(height, width);
  return {(height - side) / 2, (width - side) / 2, side, side};
}

}  // namespace

at::Tensor augment(const at::Tensor& image, const AugmentOptions& options,
                   uint64_t seed) {
  check_image(image);
  check_size(options.size);
  Random random(seed);
  const int64_t size = options.size;
  at::Tensor pixels;
  if (options.crop == Crop::kPadded) {
    const int64_t border = options.padding;
    const at::Tensor padded = at::constant_pad_nd(
        resize(image, size, size), {border, border, border, border});
    const int64_t top = random.below(2 * border + 1);
    const int64_t left = random.below(2 * border + 1);
    pixels = cut(padded, {top, left, size, size});
  } else if (options.crop == Crop::kResized) {
    const Window window = random_window(image.size(1), image.size(2),
                                        options.smallest_area, &random);
    pixels = resize(cut(image, window), size, size);
  } else {
    pixels = resize(image, size, size);
  }
  if (options.flip && random.uniform() < 0.5) pixels = at::flip(pixels, {2});
  return normalise(pixels, options);
}

at::Tensor prepare(const at::Tensor& image, const AugmentOptions& options) {
  check_image(image);
  check_size(options.size);
  const int64_t size = options.size;
  if (options.crop != Crop::kResized) {
    return normalise(resize(image, size, size), options);
  }
  const int64_t height = image.size(1);
  const int64_t width = image.size(2);
  const int64_t shorter = size * 8 / 7;
  const at::Tensor resized =
      height < width ? resize(image, shorter, shorter * width / height)
                     : resize(image, shorter * height / width, shorter);
  return normalise(cut(resized, {(resized.size(1) - size) / 2,
                                 (resized.size(2) - size) / 2, size, size}),
                   options);
}

}  // namespace gpipe::data
