// What run files ask of the file system, with errors that say what and where.
//
// Errors: c10::Error with the path and the system's reason, of all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace gpipe {

// A new file, written from its beginning. Threads: one at a time.
class FileWriter {
 public:
  // Also an error: there is something of this name.
  explicit FileWriter(std::string path);
  ~FileWriter();  // what has not been finished may be lost

  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* bytes, std::size_t size);

  // Returns when the bytes are on the disk. (The name in the folder need not
  // be; see sync_folder().) Nothing can be done afterwards.
  void finish();

  uint64_t size() const { return size_; }

 private:
  const std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// A file that is there. Threads: any.
class FileReader {
 public:
  explicit FileReader(std::string path);
  ~FileReader();

  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  uint64_t size() const { return size_; }

  // Also an error: the file ends before.
  void read_at(uint64_t offset, void* to, std::size_t size) const;

 private:
  const std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

// The names in a folder, in order; none if there is no such folder.
std::vector<std::string> names_in_folder(const std::string& path);

bool is_folder(const std::string& path);

// Makes a folder; also an error: there is something of this name.
void make_folder(const std::string& path);

// Makes those that are missing on the way to `path`, and `path`, for good.
void make_folders(const std::string& path);

// Returns when the names in the folder are on the disk.
void sync_folder(const std::string& path);

// Gives a folder another name, which nothing has.
void move_folder(const std::string& from, const std::string& to);

// Gives the folder `from` the name `to`, in one step, for good. If `to` is
// there, it is under the name `from` afterwards: true. On file systems that
// cannot exchange names (NFS, for one) it is moved to `aside` before, so that
// there is no `to` for a moment.
bool exchange_folder(const std::string& from, const std::string& to,
                     const std::string& aside);

// With everything in it. That there is none is no error.
void remove_folder(const std::string& path);

}  // namespace gpipe
