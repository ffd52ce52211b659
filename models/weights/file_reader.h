// Reads parts of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpipe::internal {

// A reader of an existing file. Functions throw c10::Error, with the path and
// the system's reason, if an operation fails. Thread-safe.
class FileReader {
 public:
  // Opens the file. Also throws c10::Error if `path` is not a regular file.
  explicit FileReader(std::string path);
  ~FileReader();

  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

  // Reads `size` bytes that start at `offset`. Also throws c10::Error if the
  // file ends before that.
  void read_at(uint64_t offset, void* to, std::size_t size) const;

 private:
  const std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace gpipe::internal
