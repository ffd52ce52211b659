#include "training/data/augment.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "training/data/image.h"
#include "training/data/random.h"

namespace gpipe::data {

// ---- Images with labels

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
  // The middle of an image that is long and thin: the whole of a small file
  // could take gigabytes.
  const int64_t most = 16 * std::min(image.size(1), image.size(2));
  const int64_t height = std::min(image.size(1), most);
  const int64_t width = std::min(image.size(2), most);
  const at::Tensor middle =
      cut(image, {(image.size(1) - height) / 2, (image.size(2) - width) / 2,
                  height, width});
  const int64_t shorter = size * 8 / 7;
  const at::Tensor resized =
      height < width ? resize(middle, shorter, shorter * width / height)
                     : resize(middle, shorter * height / width, shorter);
  return normalise(cut(resized, {(resized.size(1) - size) / 2,
                                 (resized.size(2) - size) / 2, size, size}),
                   options);
}

// ---- Images with masks

namespace {

MaskedImage random_window(const MaskedImage& all, double smallest_side,
                          Random* random) {
  const double part = random->uniform(smallest_side, 1);
  const auto length = [&](int64_t whole) {
    return std::clamp<int64_t>(std::llround(static_cast<double>(whole) * part),
                               1, whole);
  };
  Window window;
  window.height = length(all.image.size(1));
  window.width = length(all.image.size(2));
  window.top = random->below(all.image.size(1) - window.height + 1);
  window.left = random->below(all.image.size(2) - window.width + 1);
  return {cut(all.image, window), cut(all.mask, window)};
}

MaskedSample to_sample(const MaskedImage& window, int64_t size,
                       const std::vector<int64_t>& flipped = {}) {
  const auto resized = [&](const at::Tensor& planes) {
    return at::flip(resize(planes, size, size), flipped);
  };
  return {resized(window.image).div_(127.5).sub_(1),
          resized(window.mask).ge(0.5).to(at::kFloat)};
}

void check(const MaskedImage& image, const AugmentMaskOptions& options) {
  const auto& [pixels, mask] = image;
  check_image(pixels);
  TORCH_CHECK_VALUE(
      mask.dim() == 3 && mask.size(0) == 1 && mask.size(1) == pixels.size(1) &&
          mask.size(2) == pixels.size(2) && mask.scalar_type() == at::kBool,
      "expected a mask of bools, [1, ", pixels.size(1), ", ", pixels.size(2),
      "], got ", mask.scalar_type(), " ", mask.sizes());
  check_size(options.size);
  TORCH_CHECK_VALUE(options.smallest_side > 0 && options.smallest_side <= 1,
                    "smallest_side must be above 0 and at most 1, but is ",
                    options.smallest_side);
}

}  // namespace

MaskedSample augment(const MaskedImage& image,
                     const AugmentMaskOptions& options, uint64_t seed) {
  check(image, options);
  Random random(seed);
  const MaskedImage window =
      random_window(image, options.smallest_side, &random);
  std::vector<int64_t> flipped;
  for (const int64_t dimension : {1, 2}) {
    if (options.flip && random.uniform() < 0.5) flipped.push_back(dimension);
  }
  return to_sample(window, options.size, flipped);
}

MaskedSample prepare(const MaskedImage& image,
                     const AugmentMaskOptions& options) {
  check(image, options);
  return to_sample(image, options.size);
}

}  // namespace gpipe::data
