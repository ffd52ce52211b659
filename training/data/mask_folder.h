// Images with masks for segmentation, in a folder, and the score of masks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::data {

// An image with its mask.
struct MaskedImage {
  at::Tensor image;  // uint8, [3, height, width]; must not be written to
  at::Tensor mask;   // bool, [1, height, width]: true if the pixel is inside
};

// A set of images with masks: <root>/images/<name>.{jpg,jpeg,png} and
// <root>/masks/<name>.{jpg,jpeg,png}.
//
// An image and a mask belong together if their names without extension are
// equal. Pairs are in the order of these names. A pixel is inside if the
// largest of the mask's red, green and blue values is at least 128 of 255.
// get() decodes the files. Other files, folders inside images/ and masks/, and
// names that begin with a dot are ignored.
//
// Threads: several threads may call get() at once.
class MaskFolder {
 public:
  // Throws c10::ValueError with the path if the folder, images/ or masks/ does
  // not exist or cannot be read, if there is no image, if two files have the
  // same name, if an image has no mask, or if a mask has no image.
  explicit MaskFolder(const std::string& root);

  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }

  // Returns the image and mask at `index`, with 0 <= index < size().
  //
  // Throws c10::ValueError with the path if a file is broken (see image.h), or
  // if the mask has another size than its image. Also throws if the mask has
  // only the values 0 and 1, or if it has 16 bits per value and all values
  // round to 0 in 8 bits, but some are not 0. No pixel would be inside then.
  // skip_broken.h takes the next pair instead.
  MaskedImage get(int64_t index) const;

  // Returns a checksum of the files' names, in order.
  uint32_t checksum() const;

  const std::string& image_path(int64_t index) const {
    return pairs_.at(index).image;
  }
  const std::string& mask_path(int64_t index) const {
    return pairs_.at(index).mask;
  }

 private:
  struct Pair {
    std::string image;
    std::string mask;
  };
  std::vector<Pair> pairs_;
};

// Returns the Dice coefficient of each image as float64 of [rows]. For the
// pixels A with positive logits and the pixels B inside the mask, it is
// 2 |A and B| / (|A| + |B|), or 1 if both are empty.
//
// `logits`, `mask`: [rows, ...], of the same size. The result is on the device
// of the logits. Thread-safe.
at::Tensor dice(const at::Tensor& logits, const at::Tensor& mask);

}  // namespace gpipe::data
