#include "models/weights/file_reader.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "models/weights/file_writer.h"

namespace gpipe::internal {

FileReader::FileReader(std::string path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) fail_file(path_, "cannot be read", errno);
  struct stat status;
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    TORCH_CHECK(false, path_, ": is not a regular file");
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

FileReader::~FileReader() { close(descriptor_); }

void FileReader::read_at(uint64_t offset, void* to, std::size_t size) const {
  auto* rest = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got =
        pread(descriptor_, rest, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_file(path_, "cannot be read", errno);
    TORCH_CHECK(got > 0, path_, ": ends at byte ", offset);
    rest += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
}

}  // namespace gpipe::internal
