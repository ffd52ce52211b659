// A folder of folders of images: <root>/<class>/<anything>.{jpg,jpeg,png}.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/image_dataset.h"

namespace gpipe::data {

// Classes are the folders' names in alphabetical order, images are in the
// order of their paths. Files are decoded by get(), which throws for a broken
// one (see image.h; skip_broken.h goes on with the next). Other files, and
// names that begin with a dot, are ignored; folders inside a class folder are
// searched too.
class ImageFolder : public ImageDataset {
 public:
  // c10::ValueError: no such folder, no class folders, or one without images.
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
