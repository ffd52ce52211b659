// A folder of images and their masks, for segmentation:
// <root>/images/<name>.{jpg,jpeg,png} and <root>/masks/<name>.{jpg,jpeg,png}.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gpipe::data {

struct MaskedImage {
  at::Tensor image;  // uint8, [3, height, width]; not to be written to
  at::Tensor mask;   // bool, [1, height, width]: whether a pixel is inside
};

// An image and a mask belong together if their names are equal up to the
// extension; they are in the order of these names. A pixel is inside where the
// largest of the mask's red, green and blue is at least 128 of 255. Files are
// decoded by get(). Other files, folders inside images/ and masks/, and names
// that begin with a dot are ignored.
//
// Threads: get() may be called from several at once.
class MaskFolder {
 public:
  // c10::ValueError, naming the folder or file: no such folder, no images/ or
  // masks/ in it, no image, two files of the same name, an image without a mask
  // or a mask without an image.
  explicit MaskFolder(const std::string& root);

  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }

  // 0 <= index < size(). c10::ValueError, naming the file: one that is broken
  // (see image.h), a mask of another size than its image, or one that holds
  // the numbers 0 and 1 (or, with 16 bits, none that is a 256th of white), of
  // which no pixel would be inside. skip_broken.h goes on with the next
  // instead.
  MaskedImage get(int64_t index) const;

  // Of the files' names, in order.
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

}  // namespace gpipe::data
