#include "training/data/image_dataset.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "gpipe/base/files.h"
#include "training/data/checksum.h"
#include "training/data/image.h"
#include "training/data/random.h"

namespace gpipe::data {

namespace fs = std::filesystem;

// ---- Any set

namespace {

class Subset : public ImageDataset {
 public:
  Subset(std::shared_ptr<const ImageDataset> all, std::vector<int64_t> indices)
      : all_(std::move(all)), indices_(std::move(indices)) {}

  int64_t size() const override {
    return static_cast<int64_t>(indices_.size());
  }
  LabelledImage get(int64_t index) const override {
    return all_->get(indices_.at(index));
  }
  const std::vector<std::string>& classes() const override {
    return all_->classes();
  }
  uint32_t checksum() const override {
    return checksum_of(indices_, all_->checksum());
  }

 private:
  std::shared_ptr<const ImageDataset> all_;
  std::vector<int64_t> indices_;
};

}  // namespace

std::shared_ptr<ImageDataset> subset(std::shared_ptr<const ImageDataset> all,
                                     std::vector<int64_t> indices) {
  return std::make_shared<Subset>(std::move(all), std::move(indices));
}

Split hold_out(std::shared_ptr<const ImageDataset> all,
               const std::vector<int64_t>& labels, double held_out,
               uint64_t seed) {
  TORCH_CHECK_VALUE(held_out > 0 && held_out < 1, "held_out is ", held_out,
                    "; expected a fraction in (0, 1)");
  TORCH_CHECK_VALUE(static_cast<int64_t>(labels.size()) == all->size(),
                    labels.size(), " labels for ", all->size(), " images");
  std::vector<std::vector<int64_t>> by_class(all->classes().size());
  for (size_t i = 0; i < labels.size(); ++i) {
    by_class.at(labels[i]).push_back(static_cast<int64_t>(i));
  }
  std::vector<int64_t> train;
  std::vector<int64_t> test;
  for (size_t label = 0; label < by_class.size(); ++label) {
    const auto& images = by_class[label];
    const auto n = static_cast<int64_t>(images.size());
    int64_t taken = std::llround(held_out * static_cast<double>(n));
    if (n > 1) taken = std::clamp<int64_t>(taken, 1, n - 1);
    const auto order = permutation(n, mix_seed(seed, label));
    for (int64_t i = 0; i < n; ++i) {
      (i < taken ? test : train).push_back(images[order[i]]);
    }
  }
  TORCH_CHECK_VALUE(!train.empty() && !test.empty(), "held_out is ", held_out,
                    " of ", labels.size(), " images in ", by_class.size(),
                    " classes, which leaves ", train.size(),
                    " for training and ", test.size(),
                    " for testing; each needs at least one. Give another "
                    "fraction, or more images per class");
  std::sort(train.begin(), train.end());
  std::sort(test.begin(), test.end());
  return {subset(all, std::move(train)), subset(all, std::move(test))};
}

// ---- A folder of class folders

ImageFolder::ImageFolder(const std::string& root) try : root_(root) {
  TORCH_CHECK_VALUE(fs::is_directory(root), root, ": no such folder");
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && !name.starts_with('.')) {
      classes_.push_back(name);
    }
  }
  TORCH_CHECK_VALUE(!classes_.empty(), root,
                    ": holds no class folders (<class>/<image>.jpg or .png)");
  std::sort(classes_.begin(), classes_.end());
  for (size_t label = 0; label < classes_.size(); ++label) {
    const fs::path folder = fs::path(root) / classes_[label];
    const auto first = static_cast<int64_t>(paths_.size());
    for (fs::recursive_directory_iterator at(folder), end; at != end; ++at) {
      if (at->path().filename().string().starts_with('.')) {
        at.disable_recursion_pending();
      } else if (at->is_regular_file() && has_image_name(at->path())) {
        paths_.push_back(at->path().string());
      }
    }
    TORCH_CHECK_VALUE(size() > first, folder.string(),
                      ": holds no .jpg, .jpeg or .png file");
    std::sort(paths_.begin() + first, paths_.end());
    labels_.resize(paths_.size(), static_cast<int64_t>(label));
  }
} catch (const fs::filesystem_error& error) {
  refuse_folder(root, error);
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

// ---- CIFAR-10

namespace {

// Images in memory, with labels.
class ImagesInMemory : public ImageDataset {
 public:
  // `images`: uint8, [labels, 1 or 3, height, width]. A single plane is grey.
  ImagesInMemory(at::Tensor images, std::vector<int64_t> labels,
                 std::vector<std::string> classes)
      : images_(std::move(images)),
        labels_(std::move(labels)),
        classes_(std::move(classes)) {}

  int64_t size() const override { return images_.size(0); }
  LabelledImage get(int64_t index) const override {
    const int64_t label = labels_.at(index);
    return {
        images_.select(0, index).expand({3, images_.size(2), images_.size(3)}),
        label};
  }
  const std::vector<std::string>& classes() const override { return classes_; }
  uint32_t checksum() const override {
    return checksum_of(images_, checksum_of(labels_));
  }

 private:
  const at::Tensor images_;
  const std::vector<int64_t> labels_;
  const std::vector<std::string> classes_;
};

constexpr int64_t kImageBytes = 3 * 32 * 32;
constexpr int64_t kRecordBytes = 1 + kImageBytes;

std::string read_records(const std::string& path) {
  std::string bytes = internal::read_file(path);
  TORCH_CHECK_VALUE(bytes.size() % kRecordBytes == 0, path, ": ", bytes.size(),
                    " bytes are not a whole number of CIFAR-10 records of ",
                    kRecordBytes, " bytes");
  return bytes;
}

}  // namespace

std::shared_ptr<ImageDataset> read_cifar10(
    const std::vector<std::string>& paths) {
  const std::vector<std::string> classes = {
      "airplane", "automobile", "bird",  "cat",  "deer",
      "dog",      "frog",       "horse", "ship", "truck"};
  std::vector<std::string> files;
  int64_t records = 0;
  for (const auto& path : paths) {
    files.push_back(read_records(path));
    records += static_cast<int64_t>(files.back().size()) / kRecordBytes;
  }
  const at::Tensor images = at::empty({records, 3, 32, 32}, at::kByte);
  std::vector<int64_t> labels;
  auto* out = images.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < files.size(); ++i) {
    for (size_t at = 0; at < files[i].size(); at += kRecordBytes) {
      const auto label = static_cast<uint8_t>(files[i][at]);
      TORCH_CHECK_VALUE(label < classes.size(), paths[i], ": record ",
                        at / kRecordBytes, " has label ", int{label},
                        "; CIFAR-10 has labels 0 to 9");
      labels.push_back(label);
      std::memcpy(out, &files[i][at + 1], kImageBytes);
      out += kImageBytes;
    }
  }
  return std::make_shared<ImagesInMemory>(images, std::move(labels), classes);
}

// ---- MNIST

namespace {

// The first number of idx files. Its last byte is the number of dimensions, and
// the byte before stands for uint8.
constexpr uint32_t kImageMagic = 0x00000803;
constexpr uint32_t kLabelMagic = 0x00000801;

// The contents of an idx file with a valid header.
struct Idx {
  std::string bytes;
  std::vector<int64_t> sizes;
  std::size_t begin = 0;  // offset of the data
};

uint32_t number_at(const std::string& bytes, std::size_t at) {
  uint32_t number = 0;
  for (std::size_t k = 0; k < 4; ++k) {
    number = number << 8 | static_cast<unsigned char>(bytes[at + k]);
  }
  return number;
}

Idx read_idx(const std::string& path, uint32_t magic, const char* what) {
  Idx file;
  file.bytes = internal::read_file(path);
  TORCH_CHECK_VALUE(file.bytes.compare(0, 2, "\x1F\x8B") != 0, path,
                    ": is compressed; gunzip it");
  const std::size_t dimensions = magic & 0xFF;
  file.begin = 4 + 4 * dimensions;
  TORCH_CHECK_VALUE(file.bytes.size() >= file.begin, path, ": ",
                    file.bytes.size(), " bytes; the header of ", what,
                    " alone has ", file.begin);
  TORCH_CHECK_VALUE(number_at(file.bytes, 0) == magic, path,
                    ": begins with the number ", number_at(file.bytes, 0),
                    "; a file of ", what, " begins with ", magic);
  // left / size avoids the product of the sizes, which may overflow 64 bits.
  uint64_t left = file.bytes.size() - file.begin;
  bool fits = true;
  for (std::size_t k = 0; k < dimensions; ++k) {
    const uint32_t size = number_at(file.bytes, 4 + 4 * k);
    TORCH_CHECK_VALUE(size > 0, path, ": holds no ", what, " (size ", k,
                      " in its header is 0)");
    fits = fits && left % size == 0;
    left /= size;
    file.sizes.push_back(size);
  }
  TORCH_CHECK_VALUE(
      fits && left == 1, path, ": ", file.bytes.size() - file.begin,
      " bytes follow the header, which says ", at::IntArrayRef(file.sizes),
      "; the file is damaged or incomplete");
  return file;
}

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Returns the path of the file in `folder`, with "." or "-" in front of `kind`.
// If neither exists, returns the path with "-".
std::string place_of(const std::string& folder, const char* part,
                     const char* kind, const char* ending = "") {
  const std::string root = (fs::path(folder) / part).string();
  const std::string dotted = root + "." + kind + ending;
  return is_file(dotted) ? dotted : root + "-" + kind + ending;
}

}  // namespace

std::shared_ptr<ImageDataset> read_mnist(const std::string& images,
                                         const std::string& labels) {
  const std::vector<std::string> classes = {"0", "1", "2", "3", "4",
                                            "5", "6", "7", "8", "9"};
  const Idx pixels = read_idx(images, kImageMagic, "images");
  const Idx numbers = read_idx(labels, kLabelMagic, "labels");
  TORCH_CHECK_VALUE(pixels.sizes[0] == numbers.sizes[0], labels, ": ",
                    numbers.sizes[0], " labels, but ", images, " has ",
                    pixels.sizes[0], " images");
  std::vector<int64_t> found;
  for (std::size_t at = numbers.begin; at < numbers.bytes.size(); ++at) {
    const auto label = static_cast<uint8_t>(numbers.bytes[at]);
    TORCH_CHECK_VALUE(label < classes.size(), labels, ": label ",
                      at - numbers.begin, " is ", int{label},
                      "; there are labels 0 to 9");
    found.push_back(label);
  }
  const at::Tensor planes = at::empty(pixels.sizes, at::kByte);
  std::memcpy(planes.mutable_data_ptr(), &pixels.bytes[pixels.begin],
              pixels.bytes.size() - pixels.begin);
  return std::make_shared<ImagesInMemory>(planes.unsqueeze(1), std::move(found),
                                          classes);
}

std::optional<Split> find_mnist(const std::string& folder) {
  struct File {
    const char *part, *kind;
  };
  constexpr std::array<File, 4> kFiles{{{"train-images", "idx3-ubyte"},
                                        {"train-labels", "idx1-ubyte"},
                                        {"t10k-images", "idx3-ubyte"},
                                        {"t10k-labels", "idx1-ubyte"}}};
  std::vector<std::string> paths;
  std::string missing;
  bool any = false;
  for (const File& file : kFiles) {
    paths.push_back(place_of(folder, file.part, file.kind));
    const std::string packed = place_of(folder, file.part, file.kind, ".gz");
    const bool here = is_file(paths.back());
    any = any || here || is_file(packed);
    if (here || !missing.empty()) continue;
    missing = is_file(packed) ? packed + ": is compressed; gunzip it"
                              : paths.back() +
                                    ": there is no such file, but "
                                    "other files of MNIST exist";
  }
  if (!any) return std::nullopt;
  TORCH_CHECK_VALUE(missing.empty(), missing);
  return Split{read_mnist(paths[0], paths[1]), read_mnist(paths[2], paths[3])};
}

// ---- A folder in any of these formats

namespace {

std::vector<std::string> cifar_batches(const fs::path& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("data_batch_") && entry.path().extension() == ".bin") {
      paths.push_back(entry.path().string());
    }
  }
  std::sort(paths.begin(), paths.end());
  for (std::size_t k = 1; k <= paths.size(); ++k) {
    const std::string path =
        (folder / ("data_batch_" + std::to_string(k) + ".bin")).string();
    TORCH_CHECK_VALUE(std::ranges::find(paths, path) != paths.end(), path,
                      ": there is no such file, but others of CIFAR-10 exist");
  }
  return paths;
}

// Returns a name that only one of two sorted lists has; "" if they are equal.
std::string other_name(const std::vector<std::string>& a,
                       const std::vector<std::string>& b) {
  std::vector<std::string> others;
  std::ranges::set_symmetric_difference(a, b, std::back_inserter(others));
  return others.empty() ? "" : others.front();
}

}  // namespace

Split open_images(const std::string& folder, double held_out,
                  uint64_t seed) try {
  TORCH_CHECK_VALUE(fs::is_directory(folder), folder, ": no such folder");
  const fs::path root(folder);
  if (const auto batches = cifar_batches(root); !batches.empty()) {
    const std::vector<std::string> test{(root / "test_batch.bin").string()};
    return {read_cifar10(batches), read_cifar10(test)};
  }
  if (auto mnist = find_mnist(folder)) return *std::move(mnist);
  if (fs::is_directory(root / "train")) {
    for (const char* name : {"test", "val"}) {
      if (!fs::is_directory(root / name)) continue;
      Split split{std::make_shared<ImageFolder>((root / "train").string()),
                  std::make_shared<ImageFolder>((root / name).string())};
      const std::string other =
          other_name(split.train->classes(), split.test->classes());
      TORCH_CHECK_VALUE(other.empty(), folder, ": train has ",
                        split.train->classes().size(), " classes, ", name,
                        " has ", split.test->classes().size(),
                        ", and only one of them has '", other,
                        "'; both need the same class folders");
      return split;
    }
    TORCH_CHECK_VALUE(false, folder,
                      ": has train/, but neither test/ nor val/");
  }
  const auto all = std::make_shared<ImageFolder>(folder);
  return hold_out(all, all->labels(), held_out, seed);
} catch (const fs::filesystem_error& error) {
  refuse_folder(folder, error);
}

}  // namespace gpipe::data
