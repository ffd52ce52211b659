// Reads MNIST's files, which have the idx format: big-endian numbers of 4
// bytes, then one byte per pixel or label (http://yann.lecun.com/exdb/mnist,
// "the idx file format"). Fashion-MNIST and other sets of ten classes use the
// same files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "training/data/image_dataset.h"

namespace gpipe::data {

// Images and their labels, held in memory (47 MB for MNIST's training set). The
// grey plane stands for red, green and blue: get() returns it three times as a
// view, without a copy.
class Mnist : public ImageDataset {
 public:
  // `images`: path of an uncompressed idx3-ubyte file. `labels`: path of an
  // uncompressed idx1-ubyte file.
  //
  // Throws c10::ValueError with the path if a file cannot be read, has another
  // format, is longer or shorter than its header says, is empty, or has a label
  // above 9, or if the numbers of images and labels differ.
  Mnist(const std::string& images, const std::string& labels);

  int64_t size() const override { return images_.size(0); }
  LabelledImage get(int64_t index) const override;
  // Returns "0" to "9".
  const std::vector<std::string>& classes() const override;
  uint32_t checksum() const override;

 private:
  at::Tensor images_;  // uint8, [size, height, width]
  std::vector<int64_t> labels_;
};

// Returns the training set and the test set (t10k) of a folder with MNIST's
// four files, whose names have "-idx" or ".idx". Returns nullopt if none of the
// four exists.
//
// Throws c10::ValueError with the path if only some of them exist, or if a file
// exists only as .gz. Also throws the errors of Mnist().
std::optional<Split> find_mnist(const std::string& folder);

}  // namespace gpipe::data
