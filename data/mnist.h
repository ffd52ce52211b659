// MNIST's files, in the idx format: numbers of 4 bytes, the largest byte first,
// then one byte per pixel or label
// (http://yann.lecun.com/exdb/mnist, "the idx file format"). Fashion-MNIST and
// other sets of ten classes come in the same files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/image_dataset.h"

namespace gpipe::data {

// Images and their labels, held in memory (47 MB for MNIST's training set). A
// grey value stands for red, green and blue: get()'s image is one plane that is
// seen three times, not copied.
class Mnist : public ImageDataset {
 public:
  // The paths of an idx3-ubyte file of images and an idx1-ubyte file of labels,
  // not compressed. c10::ValueError, naming the file: cannot be read, is no
  // such file, is longer or shorter than its header says, holds nothing or a
  // label above 9, or the two are of different lengths.
  Mnist(const std::string& images, const std::string& labels);

  int64_t size() const override { return images_.size(0); }
  LabelledImage get(int64_t index) const override;
  // "0" to "9".
  const std::vector<std::string>& classes() const override;
  uint32_t checksum() const override;

 private:
  at::Tensor images_;  // uint8, [size, height, width]
  std::vector<int64_t> labels_;
};

// The training set and the test set (t10k) of a folder with MNIST's four files,
// under their names with "-idx" or ".idx"; nullopt if none of the four is
// there. c10::ValueError, naming it, for one that is missing, or is there as
// .gz only; and as Mnist().
std::optional<Split> find_mnist(const std::string& folder);

}  // namespace gpipe::data
