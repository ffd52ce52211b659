#include "models/weights/zip.h"

#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <ios>
#include <utility>

#include "gpipe/base/text.h"
#include "models/weights/formats.h"

namespace gpipe::internal {

using caffe2::serialize::PyTorchStreamReader;

std::string read_start(const std::string& path, std::size_t bytes) {
  struct stat status;
  TORCH_CHECK_VALUE(stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode),
                    "is not a regular file, or cannot be read");
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK_VALUE(file, "cannot be read");
  std::string start(bytes, '\0');
  file.read(start.data(), static_cast<std::streamsize>(bytes));
  start.resize(static_cast<std::size_t>(file.gcount()));
  return start;
}

void check_zip_start(std::string_view start, std::string_view writer) {
  TORCH_CHECK_VALUE(start.starts_with("PK\x03\x04"),
                    "is not a zip archive: it is damaged, or ", writer,
                    " did not write it");
}

namespace {

// Signatures of the parts of the directory, and the sizes of these parts
// without names and comments.
constexpr std::string_view kEnd("PK\x05\x06"), kEnd64("PK\x06\x06"),
    kEnd64Locator("PK\x06\x07"), kRecord("PK\x01\x02");
constexpr std::size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20,
                      kRecordBytes = 46;
constexpr std::size_t kLongestComment = 0xffff;
constexpr uint64_t kIn64 = 0xffffffff;  // the number is in a 64-bit field
constexpr uint64_t kExtra64 = 1;        // id of the extra field with that field

// Returns the little-endian number of `size` bytes at `at`.
uint64_t number(std::string_view bytes, std::size_t at, std::size_t size) {
  uint64_t value = 0;
  for (std::size_t k = size; k-- > 0;) {
    value = value << 8 | static_cast<uint8_t>(bytes[at + k]);
  }
  return value;
}

class File {
 public:
  explicit File(const std::string& path) : file_(path, std::ios::binary) {
    file_.seekg(0, std::ios::end);
    TORCH_CHECK_VALUE(file_, "cannot be read");
    size_ = static_cast<uint64_t>(file_.tellg());
  }

  uint64_t size() const { return size_; }

  // Returns `size` bytes at `at`. Throws c10::ValueError if the file does not
  // have all of them.
  std::string read(uint64_t at, uint64_t size) {
    TORCH_CHECK_VALUE(
        at <= size_ && size <= size_ - at,
        "is a zip archive whose directory is cut off, or damaged");
    std::string bytes(size, '\0');
    file_.seekg(static_cast<std::streamoff>(at));
    file_.read(bytes.data(), static_cast<std::streamsize>(size));
    TORCH_CHECK_VALUE(file_, "cannot be read");
    return bytes;
  }

 private:
  std::ifstream file_;
  uint64_t size_ = 0;
};

struct Directory {
  uint64_t records = 0;
  std::string bytes;
};

Directory read_directory(File& file) {
  const uint64_t tail_bytes =
      std::min<uint64_t>(file.size(), kEndBytes + kLongestComment);
  const uint64_t tail_at = file.size() - tail_bytes;
  const std::string tail = file.read(tail_at, tail_bytes);
  const std::size_t in_tail = tail_bytes < kEndBytes
                                  ? std::string::npos
                                  : tail.rfind(kEnd, tail_bytes - kEndBytes);
  TORCH_CHECK_VALUE(in_tail != std::string::npos,
                    "is a zip archive without a directory: it is cut off, or "
                    "damaged");
  const std::string_view end = std::string_view(tail).substr(in_tail);
  const uint64_t end_at = tail_at + in_tail;
  if (end_at >= kLocatorBytes) {
    const std::string locator =
        file.read(end_at - kLocatorBytes, kLocatorBytes);
    if (locator.starts_with(kEnd64Locator)) {
      const std::string end64 = file.read(number(locator, 8, 8), kEnd64Bytes);
      TORCH_CHECK_VALUE(end64.starts_with(kEnd64),
                        "is a zip archive whose directory is damaged");
      return {number(end64, 32, 8),
              file.read(number(end64, 48, 8), number(end64, 40, 8))};
    }
  }
  return {number(end, 10, 2),
          file.read(number(end, 16, 4), number(end, 12, 4))};
}

// Returns the size of a record from its extra fields. The field has only the
// sizes that did not fit into 32 bits; the uncompressed size is the first one.
uint64_t size_in(std::string_view extra) {
  while (extra.size() >= 4) {
    const uint64_t size = number(extra, 2, 2);
    if (size > extra.size() - 4) break;
    if (number(extra, 0, 2) == kExtra64 && size >= 8) {
      return number(extra, 4, 8);
    }
    extra.remove_prefix(4 + size);
  }
  return kIn64;
}

}  // namespace

std::vector<ZipRecord> read_zip_directory(const std::string& path) {
  File file(path);
  const Directory directory = read_directory(file);
  std::string_view rest = directory.bytes;
  uint64_t total = 0;
  std::vector<ZipRecord> records;
  for (uint64_t k = 0; k < directory.records; ++k) {
    const auto has = [&](uint64_t bytes) {
      TORCH_CHECK_VALUE(bytes <= rest.size(),
                        "is a zip archive whose directory ends within record ",
                        k, " of ", directory.records);
    };
    has(kRecordBytes);
    TORCH_CHECK_VALUE(rest.starts_with(kRecord),
                      "is a zip archive whose directory is damaged at record ",
                      k);
    const uint64_t name = number(rest, 28, 2), extra = number(rest, 30, 2),
                   comment = number(rest, 32, 2);
    has(kRecordBytes + name + extra + comment);
    uint64_t size = number(rest, 24, 4);
    if (size == kIn64) size = size_in(rest.substr(kRecordBytes + name, extra));
    // All records are in one folder, which is not part of their names.
    std::string_view shown = rest.substr(kRecordBytes, name);
    shown.remove_prefix(shown.find('/') + 1);
    TORCH_CHECK_VALUE(size <= file.size(), "has a record ", in_quotes(shown),
                      " of ", size, " bytes, but is a file of ", file.size(),
                      " bytes; compressed records are not read");
    total += size;
    TORCH_CHECK_VALUE(total <= file.size(), "has records of ", total,
                      " bytes up to ", in_quotes(shown), ", but is a file of ",
                      file.size(),
                      " bytes: some are compressed, or are the same bytes; "
                      "neither is read");
    records.push_back(
        {std::string(shown), size, static_cast<uint32_t>(number(rest, 16, 4))});
    rest.remove_prefix(kRecordBytes + name + extra + comment);
  }
  return records;
}

// ---- The archive

template <typename Read>
auto ZipArchive::call(const Read& read) {
  return with_prefix<c10::Error>(damaged_, read);
}

ZipArchive::ZipArchive(const std::string& path, std::string damaged)
    : damaged_(std::move(damaged)), directory_(read_zip_directory(path)) {
  reader_ = call([&] { return std::make_unique<PyTorchStreamReader>(path); });
}

ZipArchive::~ZipArchive() = default;

bool ZipArchive::has(const std::string& record) {
  return call([&] { return reader_->hasRecord(record); });
}

std::size_t ZipArchive::size(const std::string& record) {
  check_has(record);
  return call([&] { return reader_->getRecordSize(record); });
}

std::string ZipArchive::text(const std::string& record) {
  check_has(record);
  const auto [data, size] = call([&] { return reader_->getRecord(record); });
  return {static_cast<const char*>(data.get()), size};
}

c10::Storage ZipArchive::storage(const std::string& record) {
  check_has(record);
  auto [data, size] = call([&] { return reader_->getRecord(record); });
  return {c10::Storage::use_byte_size_t(), size, std::move(data),
          /*allocator=*/nullptr, /*resizable=*/false};
}

void ZipArchive::check_byte_order() {
  if (!has("byteorder")) return;
  const std::string order = text("byteorder");
  TORCH_CHECK_VALUE(order == "little", "has byte order ", in_quotes(order),
                    "; only 'little' is read");
}

void ZipArchive::check_has(const std::string& record) {
  TORCH_CHECK_VALUE(has(record), "has no record ", in_quotes(record));
}

}  // namespace gpipe::internal
