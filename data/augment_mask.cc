#include "data/augment_mask.h"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/flip.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "data/random.h"

namespace gpipe::data {
namespace {

// From uint8 or bool to float; smooth when it shrinks.
at::Tensor resize(const at::Tensor& planes, int64_t size) {
  const at::Tensor values = planes.to(at::kFloat);
  if (planes.size(1) == size && planes.size(2) == size) return values;
  return at::_upsample_bilinear2d_aa(values.unsqueeze(0), {size, size},
                                     /*align_corners=*/false)
      .squeeze(0);
}

MaskedImage random_window(const MaskedImage& all, double smallest_side,
                          Random* random) {
  const double part = random->uniform(smallest_side, 1);
  const auto length = [&](int64_t whole) {
    return std::clamp<int64_t>(std::llround(static_cast<double>(whole) * part),
                               1, whole);
  };
  const int64_t height = length(all.image.size(1));
  const int64_t width = length(all.image.size(2));
  const int64_t top = random->below(all.image.size(1) - height + 1);
  const int64_t left = random->below(all.image.size(2) - width + 1);
  const auto cut = [&](const at::Tensor& planes) {
    return planes.narrow(1, top, height).narrow(2, left, width);
  };
  return {cut(all.image), cut(all.mask)};
}

MaskedSample to_sample(const MaskedImage& window, int64_t size,
                       const std::vector<int64_t>& flipped = {}) {
  return {at::flip(resize(window.image, size), flipped).div_(127.5).sub_(1),
          at::flip(resize(window.mask, size), flipped).ge(0.5).to(at::kFloat)};
}

void check(const MaskedImage& image, const AugmentMaskOptions& options) {
  const auto& [pixels, mask] = image;
  TORCH_CHECK_VALUE(pixels.dim() == 3 && pixels.size(0) == 3 &&
                        pixels.scalar_type() == at::kByte && pixels.numel() > 0,
                    "expected an image of bytes, [3, height, width], got ",
                    pixels.scalar_type(), " ", pixels.sizes());
  TORCH_CHECK_VALUE(
      mask.dim() == 3 && mask.size(0) == 1 && mask.size(1) == pixels.size(1) &&
          mask.size(2) == pixels.size(2) && mask.scalar_type() == at::kBool,
      "expected a mask of bools, [1, ", pixels.size(1), ", ", pixels.size(2),
      "], got ", mask.scalar_type(), " ", mask.sizes());
  TORCH_CHECK_VALUE(options.size > 0, "cannot make images of ", options.size,
                    "x", options.size);
  TORCH_CHECK_VALUE(options.smallest_side > 0 && options.smallest_side <= 1,
                    "smallest_side is a part, above 0 and at most 1, not ",
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
