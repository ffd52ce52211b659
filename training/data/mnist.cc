#include "training/data/mnist.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>

#include "gpipe/base/read_file.h"
#include "training/data/checksum.h"

namespace gpipe::data {
namespace {

namespace fs = std::filesystem;

// The first number of idx files. Its last byte is the number of dimensions, and
// the byte before stands for uint8.
constexpr uint32_t kImageMagic = 0x00000803;
constexpr uint32_t kLabelMagic = 0x00000801;

const std::vector<std::string>& names() {
  static const auto* const names = new std::vector<std::string>{
      "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  return *names;
}

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

Mnist::Mnist(const std::string& images, const std::string& labels) {
  const Idx pixels = read_idx(images, kImageMagic, "images");
  const Idx numbers = read_idx(labels, kLabelMagic, "labels");
  TORCH_CHECK_VALUE(pixels.sizes[0] == numbers.sizes[0], labels, ": ",
                    numbers.sizes[0], " labels, but ", images, " has ",
                    pixels.sizes[0], " images");
  for (std::size_t at = numbers.begin; at < numbers.bytes.size(); ++at) {
    const auto label = static_cast<uint8_t>(numbers.bytes[at]);
    TORCH_CHECK_VALUE(label < names().size(), labels, ": label ",
                      at - numbers.begin, " is ", int{label},
                      "; there are labels 0 to 9");
    labels_.push_back(label);
  }
  images_ = at::empty(pixels.sizes, at::kByte);
  std::memcpy(images_.mutable_data_ptr(), &pixels.bytes[pixels.begin],
              pixels.bytes.size() - pixels.begin);
}

LabelledImage Mnist::get(int64_t index) const {
  const int64_t label = labels_.at(index);
  return {
      images_.select(0, index).expand({3, images_.size(1), images_.size(2)}),
      label};
}

const std::vector<std::string>& Mnist::classes() const { return names(); }

uint32_t Mnist::checksum() const {
  return checksum_of(images_, checksum_of(labels_));
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
  return Split{std::make_shared<Mnist>(paths[0], paths[1]),
               std::make_shared<Mnist>(paths[2], paths[3])};
}

}  // namespace gpipe::data
