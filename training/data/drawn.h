// Draws images, so that a training run needs no download.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/data/image_dataset.h"
#include "training/data/mask_folder.h"

namespace gpipe::data {

// ---- Labelled images

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

// ---- Images with masks

// Returns an image of 96x96 pixels: a disc of random size and place, a little
// brighter than the noise around it. The same seed gives the same image.
// Thread-safe.
MaskedImage draw_disc(uint64_t seed);

}  // namespace gpipe::data
