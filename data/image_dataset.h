// What a set of labelled images is, wherever it comes from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpipe::data {

struct LabelledImage {
  at::Tensor image;   // uint8, [3, height, width]; not to be written to
  int64_t label = 0;  // index into classes()
};

// Threads: get() may be called from several at once.
class ImageDataset {
 public:
  virtual ~ImageDataset() = default;

  virtual int64_t size() const = 0;

  // 0 <= index < size(). The same image for the same index at all times.
  virtual LabelledImage get(int64_t index) const = 0;

  // Names of the labels, in order.
  virtual const std::vector<std::string>& classes() const = 0;

  // Of which images these are, with their labels, in order: names of files, or
  // pixels that are in memory. Another set has another one, almost for sure,
  // and a copy in another place the same.
  virtual uint32_t checksum() const = 0;
};

// Some of the images of `all`, in the order of `indices`.
std::shared_ptr<ImageDataset> subset(std::shared_ptr<const ImageDataset> all,
                                     std::vector<int64_t> indices);

// `all` in two parts that have no image in common: (first, held out). Which
// ones depends on `seed` alone; `held_out` is a fraction, 0 < held_out < 1, of
// each class, at least one image of any class that has two.
struct Split {
  std::shared_ptr<ImageDataset> train;
  std::shared_ptr<ImageDataset> test;
};
Split hold_out(std::shared_ptr<const ImageDataset> all,
               const std::vector<int64_t>& labels, double held_out,
               uint64_t seed);

}  // namespace gpipe::data
