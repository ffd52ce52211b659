// Files that appear under their name when they are complete, or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gpipe {

// Writes to a temporary file in the folder of `path`, named `path` + ".tmp." +
// process id + "." + number, and gives it its name at commit():
//
//   AtomicFile file("/folder/model.pt");
//   file.write(bytes.data(), bytes.size());
//   file.commit();
//
// Whenever the process or the machine dies, `path` has its old contents, or
// what was there before, or the new ones: never a part of them. What a dead
// process leaves under the temporary name may be deleted.
//
// A file that is there already is replaced, and its permissions are not kept;
// of a symbolic link it is the link that is replaced.
//
// Errors: c10::Error with the path and the system's reason (disk full, no such
// folder, ...), also for a `path` that is there and no regular file. After an
// error the object can only be destroyed.
// Threads: one at a time for an object. Different objects, also for the same
// path, do not share anything; the last commit() wins.
class AtomicFile {
 public:
  // Makes the temporary file.
  explicit AtomicFile(std::string path);

  // Removes the temporary file unless committed. Does not throw.
  ~AtomicFile();

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends.
  void write(const void* bytes, std::size_t size);

  // Has all bytes and the new name written to the disk (fsync of the file and
  // of its folder). Nothing can be written after it.
  void commit();

  const std::string& path() const { return path_; }
  const std::string& temporary_path() const { return temporary_path_; }

  // Written so far.
  uint64_t size() const { return size_; }

 private:
  [[noreturn]] void fail(const char* what, int error);

  const std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  bool failed_ = false;
  bool committed_ = false;
};

}  // namespace gpipe
