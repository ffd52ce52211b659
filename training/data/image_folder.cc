#include "training/data/image_folder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>

#include "training/data/checksum.h"
#include "training/data/image.h"

namespace gpipe::data {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) {
  return path.filename().string().rfind('.', 0) == 0;
}

}  // namespace

ImageFolder::ImageFolder(const std::string& root) : root_(root) {
  TORCH_CHECK_VALUE(fs::is_directory(root), root, ": no such folder");
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_directory() && !is_hidden(entry.path())) {
      classes_.push_back(entry.path().filename().string());
    }
  }
  TORCH_CHECK_VALUE(!classes_.empty(), root,
                    ": holds no class folders (<class>/<image>.jpg or .png)");
  std::sort(classes_.begin(), classes_.end());
  for (size_t label = 0; label < classes_.size(); ++label) {
    const fs::path folder = fs::path(root) / classes_[label];
    const auto first = static_cast<int64_t>(paths_.size());
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file() && has_image_name(entry.path())) {
        paths_.push_back(entry.path().string());
      }
    }
    TORCH_CHECK_VALUE(size() > first, folder.string(),
                      ": holds no .jpg, .jpeg or .png file");
    std::sort(paths_.begin() + first, paths_.end());
    labels_.resize(paths_.size(), static_cast<int64_t>(label));
  }
}

LabelledImage ImageFolder::get(int64_t index) const {
  return {read_image(paths_.at(index)), labels_.at(index)};
}

// A path relative to the root begins with the name of its class, so the
// checksum includes the labels.
uint32_t ImageFolder::checksum() const {
  uint32_t sum = 0;
  for (const std::string& path : paths_) {
    sum = checksum_of(fs::path(path).lexically_relative(root_).string(), sum);
  }
  return sum;
}

}  // namespace gpipe::data
