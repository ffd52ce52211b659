#include "weights/atomic_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "weights/write_through.h"

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
  do {
    temporary_path_ = next_temporary_path(path_);
    descriptor_ = open(temporary_path_.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && (errno == EEXIST || errno == EINTR));
  if (descriptor_ < 0) fail("cannot be made", errno);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!committed_) unlink(temporary_path_.c_str());
}

void AtomicFile::write(const void* bytes, std::size_t size) {
  TORCH_CHECK(!failed_ && !committed_, path_,
              ": nothing can be written after an error or commit()");
  const int error = write_all(descriptor_, bytes, size, size_);
  if (error != 0) fail("cannot be written", error);
}

void AtomicFile::commit() {
  TORCH_CHECK(!failed_ && !committed_, path_,
              ": cannot be committed after an error or commit()");
  // A full or broken disk may be reported as late as here.
  if (fsync(descriptor_) != 0) fail("cannot be written to the disk", errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0) fail("cannot be closed", errno);
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    fail("cannot be given its name", errno);
  }
  committed_ = true;

  // The new name is only in memory until its folder is written, too.
  const FolderSync folder = sync_names(folder_of(path_));
  if (folder.result == FolderSync::Result::kNotOpened) {
    fail("is there, but its folder cannot be opened", folder.error);
  }
  if (folder.result == FolderSync::Result::kNotSynced) {
    fail("is there, but its folder cannot be written", folder.error);
  }
}

void AtomicFile::fail(const char* what, int error) {
  failed_ = true;
  TORCH_CHECK(false, path_, ": ", what, ": ", std::strerror(error));
}

}  // namespace gpipe::internal
