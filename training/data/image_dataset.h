// Sets of labelled images: the interface, and the formats of files.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace gpipe::data {

// ---- Any set

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
// Throws c10::ValueError unless 0 < held_out < 1, if the number of labels is
// not that of images, and if a part would have no image.
Split hold_out(std::shared_ptr<const ImageDataset> all,
               const std::vector<int64_t>& labels, double held_out,
               uint64_t seed);

// ---- A folder of class folders

// A set of image files with one folder per class:
// <root>/<class>/<anything>.{jpg,jpeg,png}.
//
// Classes are the names of the folders in alphabetical order. Images are
// ordered by class, then by path. get() decodes the file, and throws
// c10::ValueError if it is broken (see image.h); skip_broken.h takes the next
// image instead. Folders inside a class folder are searched too. Other files
// and names that begin with a dot are ignored.
class ImageFolder : public ImageDataset {
 public:
  // Throws c10::ValueError if the folder or one inside does not exist or cannot
  // be read, if there are no class folders, or if one has no images.
  explicit ImageFolder(const std::string& root);

  int64_t size() const override { return static_cast<int64_t>(paths_.size()); }
  LabelledImage get(int64_t index) const override;
  const std::vector<std::string>& classes() const override { return classes_; }
  uint32_t checksum() const override;

  const std::vector<int64_t>& labels() const { return labels_; }
  const std::string& path(int64_t index) const { return paths_.at(index); }

 private:
  std::string root_;
  std::vector<std::string> classes_;
  std::vector<std::string> paths_;
  std::vector<int64_t> labels_;
};

// ---- CIFAR-10

// Returns all records of several files in CIFAR-10's binary format, held in
// memory (150 MB for the whole dataset). A record has 1 byte of label and 3,072
// bytes of image: red, green and blue planes of 32x32
// (https://www.cs.toronto.edu/~kriz/cifar.html).
//
// Throws c10::ValueError with the path if a file cannot be read, if its size is
// not a multiple of 3,073 bytes, or if a label is above 9.
std::shared_ptr<ImageDataset> read_cifar10(
    const std::vector<std::string>& paths);

// ---- MNIST

// MNIST's files have the idx format: big-endian numbers of 4 bytes, then one
// byte per pixel or label (http://yann.lecun.com/exdb/mnist, "the idx file
// format"). Fashion-MNIST and other sets of ten classes use the same files.

// Returns images and their labels, held in memory (47 MB for MNIST's training
// set). The grey plane stands for red, green and blue: get() returns it three
// times as a view, without a copy. Classes are "0" to "9". `images`: path of an
// uncompressed idx3-ubyte file. `labels`: path of an uncompressed idx1-ubyte
// file.
//
// Throws c10::ValueError with the path if a file cannot be read, has another
// format, is longer or shorter than its header says, is empty, or has a label
// above 9, or if the numbers of images and labels differ.
std::shared_ptr<ImageDataset> read_mnist(const std::string& images,
                                         const std::string& labels);

// Returns the training set and the test set (t10k) of a folder with MNIST's
// four files, whose names have "-idx" or ".idx". Returns nullopt if none of the
// four exists.
//
// Throws c10::ValueError with the path if only some of them exist, or if a file
// exists only as .gz. Also throws the errors of read_mnist().
std::optional<Split> find_mnist(const std::string& folder);

// ---- A folder in any of these formats

// Opens the training set and the test set in `folder`. Recognises these
// formats, in this order:
//   data_batch_*.bin and test_batch.bin      CIFAR-10's binary format
//   train-images-idx3-ubyte and three more   MNIST's format, see read_mnist()
//   train/<class>/ and test/ or val/         image folders
//   <class>/                                 image folder; the fraction
//                                            `held_out`, selected by `seed`, is
//                                            the test set
//
// Throws c10::ValueError if the folder cannot be read or has none of these
// formats, if a file of the set is damaged or missing, or if the two sets have
// different classes.
Split open_images(const std::string& folder, double held_out, uint64_t seed);

}  // namespace gpipe::data
