// Writes bytes and file names to the disk.
//
// Functions throw c10::Error, with the path and the system's reason, if an
// operation fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpipe::internal {

// A writer of one file. Not thread-safe.
class FileWriter {
 public:
  // Creates the file. Also throws c10::Error if `path` exists.
  explicit FileWriter(std::string path);

  // Writes to an open file, and closes it at the end. `descriptor` is the
  // result of open(). `path`: the name of the file in errors.
  FileWriter(std::string path, int descriptor);

  ~FileWriter();  // without finish(), what was written may be lost

  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  // Appends `size` bytes. An error closes the file.
  void write(const void* bytes, std::size_t size);

  // Returns when all bytes are on the disk, and closes the file. The name in
  // its folder may not be there yet: see sync_folder().
  void finish();

  // Returns false after finish() or an error.
  bool is_open() const { return descriptor_ >= 0; }

  // Returns the number of bytes written so far.
  uint64_t size() const { return size_; }

 private:
  [[noreturn]] void fail(const char* what);

  const std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// Throws c10::Error with the reason of a system's error number.
[[noreturn]] void fail_file(const std::string& path, const char* what,
                            int error);

// Returns the folder of `path`: "." for a bare name, "/" for a file in the
// root. Thread-safe.
std::string folder_of(const std::string& path);

// Returns when the names in the folder are on the disk (fsync of the folder).
// Does nothing if the folder may be written but not listed, or if the file
// system does not support the call: no sync is possible or necessary then.
// Thread-safe.
void sync_folder(const std::string& path);

}  // namespace gpipe::internal
