#include "models/weights/zip.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "gpipe/base/text.h"
#include "models/weights/files.h"
#include "models/weights/formats.h"

namespace gpipe::internal {

using caffe2::serialize::PyTorchStreamReader;

namespace {

FileReader open_file(const std::string& path) {
  try {
    return FileReader(path);
  } catch (const c10::Error&) {
    TORCH_CHECK_VALUE(false, "is not a regular file, or cannot be read");
  }
}

}  // namespace

std::string read_start(const std::string& path, std::size_t bytes) {
  const FileReader file = open_file(path);
  std::string start(std::min<uint64_t>(bytes, file.size()), '\0');
  file.read_at(0, start.data(), start.size());
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
  std::memcpy(&value, &bytes[at], size);
  return value;
}

// Returns `size` bytes at `at`. Throws c10::ValueError if the file does not
// have all of them.
std::string read(const FileReader& file, uint64_t at, uint64_t size) {
  TORCH_CHECK_VALUE(at <= file.size() && size <= file.size() - at,
                    "is a zip archive whose directory is cut off, or damaged");
  std::string bytes(size, '\0');
  file.read_at(at, bytes.data(), size);
  return bytes;
}

struct Directory {
  uint64_t records = 0;
  std::string bytes;
};

Directory read_directory(const FileReader& file) {
  const uint64_t tail_bytes =
      std::min<uint64_t>(file.size(), kEndBytes + kLongestComment);
  const uint64_t tail_at = file.size() - tail_bytes;
  const std::string tail = read(file, tail_at, tail_bytes);
  const std::size_t in_tail = tail_bytes < kEndBytes
                                  ? std::string::npos
                                  : tail.rfind(kEnd, tail_bytes - kEndBytes);
  TORCH_CHECK_VALUE(in_tail != std::string::npos,
                    "is a zip archive without a directory: it is cut off, or "
                    "damaged");
  const std::string_view end = std::string_view(tail).substr(in_tail);
  const uint64_t end_at = tail_at + in_tail;
  // As LibTorch's reader: a locator needs a directory before it.
  if (end_at >= kLocatorBytes + kEnd64Bytes) {
    const std::string locator =
        read(file, end_at - kLocatorBytes, kLocatorBytes);
    if (locator.starts_with(kEnd64Locator)) {
      const std::string end64 = read(file, number(locator, 8, 8), kEnd64Bytes);
      TORCH_CHECK_VALUE(end64.starts_with(kEnd64),
                        "is a zip archive whose directory is damaged");
      return {number(end64, 32, 8),
              read(file, number(end64, 48, 8), number(end64, 40, 8))};
    }
  }
  return {number(end, 10, 2),
          read(file, number(end, 16, 4), number(end, 12, 4))};
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
  const FileReader file = open_file(path);
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
    records.push_back({std::string(shown), size,
                       static_cast<uint32_t>(number(rest, 16, 4)),
                       /*compressed=*/number(rest, 10, 2) != 0});
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
    : path_(path),
      damaged_(std::move(damaged)),
      directory_(read_zip_directory(path)) {
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

c10::Storage ZipArchive::mapped_storage(const std::string& record) {
  const std::size_t bytes = size(record);
  const std::size_t at = call([&] { return reader_->getRecordOffset(record); });
  if (at % alignof(std::max_align_t) != 0 ||
      std::ranges::any_of(directory_, &ZipRecord::compressed)) {
    return storage(record);
  }
  if (!mapping_) mapping_ = open_file(path_).map();
  TORCH_CHECK_VALUE(at <= mapping_->size() && bytes <= mapping_->size() - at,
                    "has a record ", in_quotes(record),
                    " that ends after the file");
  return at::from_blob(
             const_cast<char*>(mapping_->data()) + at,
             {static_cast<int64_t>(bytes)}, [mapping = mapping_](void*) {},
             at::kByte)
      .storage();
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
