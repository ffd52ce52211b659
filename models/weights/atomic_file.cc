#include "models/weights/atomic_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <utility>

namespace gpipe::internal {
namespace {

// Returns a new name for each call in this process. The name may still exist: a
// dead process may have had the same id, or another machine may share the
// folder. open() with O_EXCL detects this.
std::string next_temporary_path(const std::string& path) {
  static std::atomic<uint64_t> count{0};
  return path + ".tmp." + std::to_string(getpid()) + "." +
         std::to_string(count++);
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  struct stat status;
  if (stat(path_.c_str(), &status) == 0) {
    TORCH_CHECK(S_ISREG(status.st_mode), path_,
                ": cannot be replaced, because it is not a regular file");
  }
  int descriptor = -1;
  do {
    temporary_path_ = next_temporary_path(path_);
    descriptor = open(temporary_path_.c_str(),
                      O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor < 0 && (errno == EEXIST || errno == EINTR));
  file_.emplace(path_, descriptor);
}

AtomicFile::~AtomicFile() {
  if (!committed_) unlink(temporary_path_.c_str());
}

void AtomicFile::write(const void* bytes, std::size_t size) {
  TORCH_CHECK(file_->is_open(), path_,
              ": nothing can be written after an error or commit()");
  file_->write(bytes, size);
}

void AtomicFile::finish() {
  TORCH_CHECK(file_->is_open(), path_,
              ": cannot be finished after an error or commit()");
  file_->finish();
  finished_ = true;
}

void AtomicFile::commit() {
  TORCH_CHECK((finished_ || file_->is_open()) && !committed_, path_,
              ": cannot be committed after an error or commit()");
  if (!finished_) finish();
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    fail_file(path_, "cannot be given its name", errno);
  }
  committed_ = true;
  // The new name is only in memory until its folder is written, too.
  sync_folder(folder_of(path_));
}

}  // namespace gpipe::internal
