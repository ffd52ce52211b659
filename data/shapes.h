// A small labelled set made by a program, so that a training run needs no
// download.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/image_dataset.h"

namespace gpipe::data {

// Eight classes of shapes (disc, ring, square, ...), each image with a place,
// a size, two colours and noise of its own, drawn by get(). Image i is of class
// i % 8, and the same for the same seed and image size.
class Shapes : public ImageDataset {
 public:
  // `images` of [3, size, size].
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
