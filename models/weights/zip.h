// Zip archives, whose beginning and directory are checked before LibTorch's
// reader gets them.
#pragma once

#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace gpipe::internal {

// Returns the first `bytes` bytes of a file; fewer if the file is smaller.
// Throws c10::ValueError, without the path, if the file is not a regular file,
// or cannot be read. Thread-safe.
std::string read_start(const std::string& path, std::size_t bytes);

// Checks that `start`, 4 or more bytes at the start of a file, are those of a
// zip archive. LibTorch's reader would only say that the file is no zip.
// `writer`: Python's function that writes such files, named in the error.
// Throws c10::ValueError, without the path. Thread-safe.
void check_zip_start(std::string_view start, std::string_view writer);

// A record, as the directory describes it.
struct ZipRecord {
  std::string name;  // without the folder, which all records share
  uint64_t size = 0;
  uint32_t crc32 = 0;
  bool compressed = false;
};

// Returns the records in the order of the directory. Checks their sizes, before
// LibTorch's reader allocates memory of these sizes. torch.save does not
// compress. So a record that is larger than the file has a wrong size, or would
// expand to fill the memory. The same holds if all records together are larger
// than the file, because some of them then share bytes. The format is PKWARE's
// APPNOTE.TXT, sections 4.3.12 to 4.3.16 and 4.5.3.
//
// Throws c10::ValueError, without the path, if there are such records, or if
// the directory is missing, cut off or damaged. Thread-safe.
std::vector<ZipRecord> read_zip_directory(const std::string& path);

// The records of an archive, which LibTorch's reader reads when they are asked
// for. All functions throw c10::ValueError, without the path, if the archive is
// damaged or lacks a record. Not thread-safe.
class ZipArchive {
 public:
  // `path`: an archive whose beginning has been checked. Checks its directory,
  // see read_zip_directory(). `damaged`: what stands in front of an error of
  // LibTorch's reader.
  ZipArchive(const std::string& path, std::string damaged);
  ~ZipArchive();
  ZipArchive(const ZipArchive&) = delete;
  ZipArchive& operator=(const ZipArchive&) = delete;

  bool has(const std::string& record);
  // Returns the size of a record in bytes, without reading it.
  std::size_t size(const std::string& record);
  // Returns the content of a record.
  std::string text(const std::string& record);
  c10::Storage storage(const std::string& record);
  // Returns the content of a record as FileReader::map() does; it must not be
  // changed. Reads the record if that is not possible: an archive with
  // compressed records, or bytes that are not aligned for every dtype.
  c10::Storage mapped_storage(const std::string& record);

  // Throws c10::ValueError if the record "byteorder" is another than "little".
  void check_byte_order();

  const std::vector<ZipRecord>& directory() const { return directory_; }

 private:
  // Returns what `read` returns for the reader.
  template <typename Read>
  auto call(const Read& read);
  void check_has(const std::string& record);

  const std::string path_;
  const std::string damaged_;
  const std::vector<ZipRecord> directory_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
  std::shared_ptr<const std::string_view>
      mapping_;  // once one record is mapped
};

}  // namespace gpipe::internal
