// Reads a folder of class folders: <root>/<class>/<anything>.{jpg,jpeg,png}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/data/image_dataset.h"

namespace gpipe::data {

// A set of image files with one folder per class.
//
// Classes are the names of the folders in alphabetical order. Images are
// ordered by class, then by path. get() decodes the file, and throws
// c10::ValueError if it is broken (see image.h); skip_broken.h takes the next
// image instead. Folders inside a class folder are searched too. Other files
// and names that begin with a dot are ignored.
class ImageFolder : public ImageDataset {
 public:
  // Throws c10::ValueError if the folder does not exist, has no class folders,
  // or has a class folder without images.
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

}  // namespace gpipe::data
