#include "weights/write_through.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace gpipe::internal {

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return path.substr(0, std::max<std::size_t>(slash, 1));
}

int write_all(int descriptor, const void* bytes, std::size_t size,
              uint64_t& written) {
  const auto* rest = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t part = ::write(descriptor, rest, size);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0) return errno;
    rest += part;
    size -= static_cast<std::size_t>(part);
    written += static_cast<uint64_t>(part);
  }
  return 0;
}

FolderSync sync_names(const std::string& folder) {
  const int descriptor =
      open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    if (errno == EACCES) return {};
    return {FolderSync::Result::kNotOpened, errno};
  }
  const bool synced = fsync(descriptor) == 0 || errno == EINVAL ||
                      errno == ENOTSUP || errno == EROFS;
  const int error = errno;
  close(descriptor);
  if (synced) return {};
  return {FolderSync::Result::kNotSynced, error};
}

}  // namespace gpipe::internal
