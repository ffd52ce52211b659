// The interface of sets of labelled images.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpipe::data {

// An image with its label.
struct LabelledImage {
  at::Tensor image;   // uint8, [3, height, width]; must not be written to
  int64_t label = 0;  // index into classes()
};

// A set of labelled images.
// Threads: several threads may call get() at once.
class ImageDataset {
 public:
  virtual ~ImageDataset() = default;

  virtual int64_t size() const = 0;

  // Returns the image and label at `index`, with 0 <= index < size(). The same
  // index always gives the same image.
  virtual LabelledImage get(int64_t index) const = 0;

  // The names of the labels, in order.
  virtual const std::vector<std::string>& classes() const = 0;

  // Returns a checksum of the images and labels, in order. The checksum is
  // computed from file names, or from pixels that are in memory. Different sets
  // almost certainly have different checksums. A copy in another folder has the
  // same one.
  virtual uint32_t checksum() const = 0;
};

// Returns the set of the images of `all` at `indices`, in this order.
std::shared_ptr<ImageDataset> subset(std::shared_ptr<const ImageDataset> all,
                                     std::vector<int64_t> indices);

// A set in two parts that have no image in common.
struct Split {
  std::shared_ptr<ImageDataset> train;
  std::shared_ptr<ImageDataset> test;
};

// Splits `all` at random; which images are held out depends only on `seed`.
// `labels`: the label of each image. `held_out`: the fraction of each class for
// the test set. A class of two or more images has at least one in each part.
//
// Throws c10::ValueError unless 0 < held_out < 1, and if the number of labels
// is not that of images.
Split hold_out(std::shared_ptr<const ImageDataset> all,
               const std::vector<int64_t>& labels, double held_out,
               uint64_t seed);

}  // namespace gpipe::data
