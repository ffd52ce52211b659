#include "weights/atomic_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gpipe {
namespace {

// "." for a bare file name, "/" for a file in the root.
std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

// Neither this process nor a dead one with the same id, nor another machine
// that shares the folder, has the name already: O_EXCL finds out.
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
                ": cannot be replaced, for it is no regular file");
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
  const auto* rest = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::write(descriptor_, rest, size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("cannot be written", errno);
    rest += written;
    size -= static_cast<std::size_t>(written);
    size_ += static_cast<uint64_t>(written);
  }
}

void AtomicFile::commit() {
  TORCH_CHECK(!failed_ && !committed_, path_,
              ": cannot be committed after an error or commit()");
  // Disks may be found to be full, or broken, as late as here.
  if (fsync(descriptor_) != 0) fail("cannot be written to the disk", errno);
  const int descriptor = std::exchange(descriptor_, -1);
  if (close(descriptor) != 0) fail("cannot be closed", errno);
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    fail("cannot be given its name", errno);
  }
  committed_ = true;

  // The new name, too, is only in memory until its folder is written.
  const std::string folder = folder_of(path_);
  const int directory =
      open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) {
    // One may write into a folder that one may not list.
    if (errno == EACCES) return;
    fail("is there, but its folder cannot be opened", errno);
  }
  // Some file systems cannot do it, and need not.
  const bool synced = fsync(directory) == 0 || errno == EINVAL ||
                      errno == ENOTSUP || errno == EROFS;
  const int error = errno;
  close(directory);
  if (!synced) fail("is there, but its folder cannot be written", error);
}

void AtomicFile::fail(const char* what, int error) {
  failed_ = true;
  TORCH_CHECK(false, path_, ": ", what, ": ", std::strerror(error));
}

}  // namespace gpipe
