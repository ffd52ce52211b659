// Reads parts of files, writes files and their names to the disk, and writes
// files that appear under their name only when they are complete.
//
// Functions throw c10::Error, with the path and the system's reason, if an
// operation fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "gpipe/base/descriptor.h"

namespace gpipe::internal {

// A reader of an existing file. Functions throw c10::Error, with the path and
// the system's reason, if an operation fails. Thread-safe.
class FileReader {
 public:
  // Opens the file. Also throws c10::Error if `path` is not a regular file.
  explicit FileReader(std::string path);

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }

  // Reads `size` bytes that start at `offset`. Also throws c10::Error if the
  // file ends before that.
  void read_at(uint64_t offset, void* to, std::size_t size) const;

  // Returns the bytes of the file, which is not empty. They are read from the
  // disk when they are used, stay after this object, and cannot be changed. If
  // the file is shortened meanwhile, a use ends the process with SIGBUS.
  std::shared_ptr<const std::string_view> map() const;

 private:
  const std::string path_;
  const Descriptor descriptor_;
  uint64_t size_ = 0;
};

// A writer of one file. Without finish(), what was written may be lost. Not
// thread-safe.
class FileWriter {
 public:
  // Creates the file. Also throws c10::Error if `path` exists.
  explicit FileWriter(std::string path);

  // Writes to an open file, and closes it at the end. `descriptor` is the
  // result of open(). `path`: the name of the file in errors.
  FileWriter(std::string path, int descriptor);

  // Appends `size` bytes. An error closes the file.
  void write(const void* bytes, std::size_t size);

  // Returns when all bytes are on the disk, and closes the file. The name in
  // its folder may not be there yet: see sync_folder().
  void finish();

  // Returns false after finish() or an error.
  bool is_open() const { return descriptor_.get() >= 0; }

  // Returns the number of bytes written so far.
  uint64_t size() const { return size_; }

 private:
  [[noreturn]] void fail(const char* what);

  const std::string path_;
  Descriptor descriptor_;
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

// Creates the folder `path` and its missing parents, and syncs their names to
// the disk. Does nothing for "". Thread-safe.
void make_folders(const std::string& path);

// Removes a file if it exists. Thread-safe.
void remove_file(const std::string& path);

// A file that is written under a temporary name. commit() renames it to `path`.
//
// The temporary file is in the folder of `path`. Its name is `path` + ".tmp." +
// process id + "." + number.
//
//   AtomicFile file("/folder/model.pt");
//   file.write(bytes.data(), bytes.size());
//   file.commit();
//
// If the process or the machine dies, `path` has either its old contents (or
// does not exist, as before) or all of the new contents, never a part of them.
// A dead process can leave a temporary file behind, which may be deleted.
//
// An existing file is replaced, and its permissions are not kept. If `path` is
// a symbolic link, the link is replaced, not its target.
//
// Throws c10::Error with the path and the system's reason (disk full, no such
// folder, ...), also if `path` exists and is not a regular file. After an error
// the object can only be destroyed.
// Threads: one thread at a time may use an object. Different objects share
// nothing, even for the same path; the last commit() wins.
class AtomicFile {
 public:
  // Creates the temporary file.
  explicit AtomicFile(std::string path);

  // Removes the temporary file unless commit() has succeeded. Does not throw.
  ~AtomicFile();

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends `size` bytes.
  void write(const void* bytes, std::size_t size);

  // Syncs the bytes to the disk (fsync). Nothing can be written afterwards.
  // commit() does this as well; a call of its own lets several files be
  // complete before the first of them gets its name.
  void finish();

  // Calls finish() unless it was called, renames the file to `path`, and syncs
  // its folder. If only the sync of the
  // folder fails, commit() throws an error that names the folder, and the new
  // file stays.
  void commit();

  const std::string& path() const { return path_; }
  const std::string& temporary_path() const { return temporary_path_; }

  // The number of bytes written so far.
  uint64_t size() const { return file_->size(); }

 private:
  const std::string path_;
  std::string temporary_path_;
  std::optional<FileWriter> file_;
  bool finished_ = false;
  bool committed_ = false;
};

}  // namespace gpipe::internal
