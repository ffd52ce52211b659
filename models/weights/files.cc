#include "models/weights/files.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace gpipe::internal {
namespace {

// Returns the result of a system call, which is made again if a signal has
// interrupted it. FUSE reports EINTR even if handlers restart system calls.
template <typename Call>
auto repeated(const Call& call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

int open_file(const std::string& path, int flags) {
  return repeated([&] { return open(path.c_str(), flags | O_CLOEXEC, 0666); });
}

}  // namespace

FileReader::FileReader(std::string path)
    : path_(std::move(path)),
      // O_NONBLOCK: a FIFO without a writer is an error as well.
      descriptor_(open_file(path_, O_RDONLY | O_NONBLOCK)) {
  if (descriptor_.get() < 0) fail_file(path_, "cannot be read", errno);
  struct stat status;
  TORCH_CHECK(fstat(descriptor_.get(), &status) == 0 && S_ISREG(status.st_mode),
              path_, ": is not a regular file");
  size_ = static_cast<uint64_t>(status.st_size);
}

void FileReader::read_at(uint64_t offset, void* to, std::size_t size) const {
  auto* rest = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t got = repeated([&] {
      return pread(descriptor_.get(), rest, size, static_cast<off_t>(offset));
    });
    if (got < 0) fail_file(path_, "cannot be read", errno);
    TORCH_CHECK(got > 0, path_, ": ends at byte ", offset);
    rest += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<std::size_t>(got);
  }
}

std::shared_ptr<const std::string_view> FileReader::map() const {
  // Read-only, since the kernel refuses writable mappings that are larger than
  // the memory.
  void* const bytes =
      mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor_.get(), 0);
  if (bytes == MAP_FAILED) fail_file(path_, "cannot be mapped", errno);
  return {new std::string_view(static_cast<const char*>(bytes), size_),
          [](const std::string_view* view) {
            munmap(const_cast<char*>(view->data()), view->size());
            delete view;
          }};
}

FileWriter::FileWriter(std::string path)
    : FileWriter(path, open_file(path, O_WRONLY | O_CREAT | O_EXCL)) {}

FileWriter::FileWriter(std::string path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {
  if (!is_open()) fail("cannot be created");
}

void FileWriter::write(const void* bytes, std::size_t size) {
  const auto* rest = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t part =
        repeated([&] { return ::write(descriptor_.get(), rest, size); });
    if (part < 0) fail("cannot be written");
    rest += part;
    size -= static_cast<std::size_t>(part);
    size_ += static_cast<uint64_t>(part);
  }
}

void FileWriter::finish() {
  // A full or broken disk may be detected only here.
  if (repeated([&] { return fsync(descriptor_.get()); }) != 0) {
    fail("cannot be written to the disk");
  }
  // Linux closes the descriptor also if a signal interrupts close().
  if (close(descriptor_.release()) != 0 && errno != EINTR) {
    fail("cannot be closed");
  }
}

void FileWriter::fail(const char* what) {
  const int error = errno;
  descriptor_.close();
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
  const Descriptor folder(open_file(path, O_RDONLY | O_DIRECTORY));
  if (folder.get() < 0) {
    if (errno == EACCES) return;
    fail_file(path, "cannot be opened", errno);
  }
  const bool synced = repeated([&] { return fsync(folder.get()); }) == 0 ||
                      errno == EINVAL || errno == ENOTSUP || errno == EROFS;
  if (!synced) fail_file(path, "cannot be written to the disk", errno);
}

void make_folders(const std::string& path) {
  const auto is_folder = [](const std::string& each) {
    struct stat status;
    return stat(each.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  };
  if (path.empty() || is_folder(path)) return;
  std::string plain = path;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  const std::string parent = folder_of(plain);
  if (parent != plain) make_folders(parent);
  // Another process may have created the folder just now.
  if (mkdir(plain.c_str(), 0777) != 0 && errno != EEXIST) {
    fail_file(path, "cannot be created", errno);
  }
  TORCH_CHECK_VALUE(is_folder(plain), path, ": is not a folder");
  sync_folder(parent);
}

void remove_file(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    fail_file(path, "cannot be removed", errno);
  }
}

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
    descriptor = open_file(temporary_path_, O_WRONLY | O_CREAT | O_EXCL);
  } while (descriptor < 0 && errno == EEXIST);
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
