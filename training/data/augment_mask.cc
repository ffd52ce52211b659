#include "training/data/augment_mask.h"

#include <ATen/ops/flip.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "training/data/pixels.h"
#include "training/data/random.h"

namespace gpipe::data {
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
