// Reads CIFAR-10's binary format. A record has 1 byte of label and 3,072 bytes
// of image: red, green and blue planes of 32x32
// (https://www.cs.toronto.edu/~kriz/cifar.html).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/data/image_dataset.h"

namespace gpipe::data {

// All records of several files, held in memory (150 MB for the whole dataset).
class Cifar10 : public ImageDataset {
 public:
  // Throws c10::ValueError with the path if a file cannot be read, if its size
  // is not a multiple of 3,073 bytes, or if a label is above 9.
  explicit Cifar10(const std::vector<std::string>& paths);

  int64_t size() const override { return images_.size(0); }
  LabelledImage get(int64_t index) const override;
  const std::vector<std::string>& classes() const override;
  uint32_t checksum() const override;

 private:
  at::Tensor images_;  // uint8, [size, 3, 32, 32]
  std::vector<int64_t> labels_;
};

}  // namespace gpipe::data
