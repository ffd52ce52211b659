// Draws a small set of labelled images, so that a training run needs no
// download.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/data/image_dataset.h"

namespace gpipe::data {

// Images of eight classes of shapes (disc, ring, square, ...). get() draws an
// image with a random place, size, two colours and noise. Image i has class i %
// 8, and depends only on i, the seed and the image size.
class Shapes : public ImageDataset {
 public:
  // `images`: number of images. `size`: their side in pixels. Throws
  // c10::ValueError if either is below 1.
  Shapes(int64_t images, int64_t size, uint64_t seed);

  int64_t size() const override { return images_; }
  LabelledImage get(int64_t index) const override;
  const std::vector<std::string>& classes() const override;
  uint32_t checksum() const override;

 private:
  int64_t images_;
  int64_t side_;
  uint64_t seed_;
};

}  // namespace gpipe::data
