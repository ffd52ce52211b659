// Writes files that appear under their name only when they are complete.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "models/weights/file_writer.h"

namespace gpipe::internal {

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
