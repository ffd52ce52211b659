#include "training/data/cifar10.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>

#include "gpipe/base/read_file.h"
#include "training/data/checksum.h"

namespace gpipe::data {
namespace {

constexpr int64_t kImageBytes = 3 * 32 * 32;
constexpr int64_t kRecordBytes = 1 + kImageBytes;

const std::vector<std::string>& names() {
  static const auto* const names = new std::vector<std::string>{
      "airplane", "automobile", "bird",  "cat",  "deer",
      "dog",      "frog",       "horse", "ship", "truck"};
  return *names;
}

std::string read_records(const std::string& path) {
  std::string bytes = internal::read_file(path);
  TORCH_CHECK_VALUE(bytes.size() % kRecordBytes == 0, path, ": ", bytes.size(),
                    " bytes are not a whole number of CIFAR-10 records of ",
                    kRecordBytes, " bytes");
  return bytes;
}

}  // namespace

Cifar10::Cifar10(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  int64_t records = 0;
  for (const auto& path : paths) {
    files.push_back(read_records(path));
    records += static_cast<int64_t>(files.back().size()) / kRecordBytes;
  }
  images_ = at::empty({records, 3, 32, 32}, at::kByte);
  auto* out = images_.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < files.size(); ++i) {
    for (size_t at = 0; at < files[i].size(); at += kRecordBytes) {
      const auto label = static_cast<uint8_t>(files[i][at]);
      TORCH_CHECK_VALUE(label < names().size(), paths[i], ": record ",
                        at / kRecordBytes, " has label ", int{label},
                        "; CIFAR-10 has labels 0 to 9");
      labels_.push_back(label);
      std::memcpy(out, &files[i][at + 1], kImageBytes);
      out += kImageBytes;
    }
  }
}

LabelledImage Cifar10::get(int64_t index) const {
  return {images_.select(0, index), labels_.at(index)};
}

const std::vector<std::string>& Cifar10::classes() const { return names(); }

uint32_t Cifar10::checksum() const {
  return checksum_of(images_, checksum_of(labels_));
}

}  // namespace gpipe::data
