#include "models/weights/file_writer.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace gpipe::internal {

FileWriter::FileWriter(std::string path)
    : FileWriter(path, open(path.c_str(),
                            O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {}

FileWriter::FileWriter(std::string path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {
  if (descriptor_ < 0) fail("cannot be created");
}

FileWriter::~FileWriter() {
  if (is_open()) close(descriptor_);
}

void FileWriter::write(const void* bytes, std::size_t size) {
  const auto* rest = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t part = ::write(descriptor_, rest, size);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) fail("cannot be written");
    rest += part;
    size -= static_cast<std::size_t>(part);
    size_ += static_cast<uint64_t>(part);
  }
}

void FileWriter::finish() {
  // A full or broken disk may be detected only here.
  if (fsync(descriptor_) != 0) fail("cannot be written to the disk");
  if (close(std::exchange(descriptor_, -1)) != 0) fail("cannot be closed");
}

void FileWriter::fail(const char* what) {
  const int error = errno;
  if (is_open()) close(std::exchange(descriptor_, -1));
  fail_file(path_, what, error);
}

void fail_file(const std::string& path, const char* what, int error) {
  TORCH_CHECK(false, path, ": ", what, ": ", std::strerror(error));
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

void sync_folder(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    if (errno == EACCES) return;
    fail_file(path, "cannot be opened", errno);
  }
  const bool synced = fsync(descriptor) == 0 || errno == EINVAL ||
                      errno == ENOTSUP || errno == EROFS;
  const int error = errno;
  close(descriptor);
  if (!synced) fail_file(path, "cannot be written to the disk", error);
}

}  // namespace gpipe::internal
