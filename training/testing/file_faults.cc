#include "training/testing/file_faults.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdlib>
#include <mutex>

namespace gpipe::testing {
namespace {

std::atomic<bool> armed{false};
std::mutex mutex;
// `mutex` guards all of these.
std::string folder;
int64_t fault_at = 0;
Fault fault = Fault::kNone;
int fault_error = 0;
std::vector<std::string>* operations = nullptr;

enum class Verdict { kGoOn, kFail, kHalf, kHalfThenKill };

std::string path_of(int descriptor) {
  const std::string link = "/proc/self/fd/" + std::to_string(descriptor);
  char path[PATH_MAX];
  const long size = syscall(SYS_readlink, link.c_str(), path, sizeof path);
  return size < 0 ? "" : std::string(path, static_cast<std::size_t>(size));
}

std::string path_at(int directory, const char* path) {
  if (path[0] == '/') return path;
  if (directory == AT_FDCWD) return "";  // no test uses such a path
  return path_of(directory) + "/" + path;
}

void kill_self() {
  syscall(SYS_kill, getpid(), SIGKILL);
  std::abort();
}

// Counts an operation and decides what happens to it. `frees`: the operation
// needs no space on the disk.
Verdict judge(const char* operation, const std::string& path,
              bool frees = false) {
  if (!armed.load()) return Verdict::kGoOn;
  std::lock_guard<std::mutex> lock(mutex);
  if (!armed.load() || path.compare(0, folder.size(), folder) != 0) {
    return Verdict::kGoOn;
  }
  std::string shown = path.substr(folder.size());
  while (!shown.empty() && shown[0] == '/') shown.erase(0, 1);
  if (shown.empty()) shown = ".";
  const auto number = static_cast<int64_t>(operations->size());
  operations->push_back(std::string(operation) + " " + shown);
  if (number < fault_at) return Verdict::kGoOn;
  const bool is_write = std::string(operation) == "write";
  switch (fault) {
    case Fault::kNone:
      return Verdict::kGoOn;
    case Fault::kKill:
      kill_self();
      return Verdict::kGoOn;
    case Fault::kKillHalf:
      if (is_write) return Verdict::kHalfThenKill;
      kill_self();
      return Verdict::kGoOn;
    case Fault::kError:
      if (number > fault_at && frees) return Verdict::kGoOn;
      return Verdict::kFail;
    case Fault::kErrorOnce:
      return number == fault_at ? Verdict::kFail : Verdict::kGoOn;
    case Fault::kShort:
      return number == fault_at && is_write ? Verdict::kHalf : Verdict::kGoOn;
  }
  return Verdict::kGoOn;
}

int fail() {
  errno = fault_error;
  return -1;
}

}  // namespace

void arm_fault(const std::string& in, int64_t at, Fault what, int error) {
  std::lock_guard<std::mutex> lock(mutex);
  if (!operations) operations = new std::vector<std::string>();
  operations->clear();
  folder = in;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  fault_at = at;
  fault = what;
  fault_error = error;
  armed = true;
}

std::vector<std::string> disarm_fault() {
  std::lock_guard<std::mutex> lock(mutex);
  armed = false;
  return *operations;
}

}  // namespace gpipe::testing

// ---- Replacements for the C library's functions, made of system calls

namespace {

using gpipe::testing::fail;
using gpipe::testing::judge;
using gpipe::testing::kill_self;
using gpipe::testing::path_at;
using gpipe::testing::path_of;
using gpipe::testing::Verdict;

int open_at(int directory, const char* path, int flags, mode_t mode) {
  // Not for files that are only read. judge() itself reads /proc.
  if (gpipe::testing::armed.load() &&
      (flags & (O_CREAT | O_DIRECTORY | O_WRONLY | O_RDWR)) != 0 &&
      judge((flags & O_CREAT) != 0 ? "create" : "open",
            path_at(directory, path),
            (flags & O_CREAT) == 0) == Verdict::kFail) {
    return fail();
  }
  return static_cast<int>(syscall(SYS_openat, directory, path, flags, mode));
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0
             ? static_cast<mode_t>(va_arg(arguments, int))
             : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(AT_FDCWD, path, flags, mode);
}

int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  return open_at(directory, path, flags, mode);
}

ssize_t write(int descriptor, const void* bytes, size_t size) {
  if (gpipe::testing::armed.load()) {
    switch (judge("write", path_of(descriptor))) {
      case Verdict::kGoOn:
        break;
      case Verdict::kFail:
        return fail();
      case Verdict::kHalf:
        size = (size + 1) / 2;
        break;
      case Verdict::kHalfThenKill:
        syscall(SYS_write, descriptor, bytes, size / 2);
        kill_self();
    }
  }
  return syscall(SYS_write, descriptor, bytes, size);
}

int fsync(int descriptor) {
  if (gpipe::testing::armed.load() &&
      judge("fsync", path_of(descriptor)) == Verdict::kFail) {
    return fail();
  }
  // Data that a killed process has written stays readable, and tests need not
  // wait for the disk.
  return fcntl(descriptor, F_GETFD) < 0 ? -1 : 0;
}

int close(int descriptor) {
  // As the kernel does, closes the descriptor even if the call fails.
  const bool fails =
      gpipe::testing::armed.load() &&
      judge("close", path_of(descriptor), true) == Verdict::kFail;
  const auto result = static_cast<int>(syscall(SYS_close, descriptor));
  return fails ? fail() : result;
}

int mkdir(const char* path, mode_t mode) {
  if (judge("mkdir", path_at(AT_FDCWD, path)) == Verdict::kFail) return fail();
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int rename(const char* from, const char* to) {
  if (judge("rename", path_at(AT_FDCWD, to)) == Verdict::kFail) return fail();
  return static_cast<int>(
      syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int renameat2(int from_directory, const char* from, int to_directory,
              const char* to, unsigned flags) {
  if (judge("exchange", path_at(to_directory, to)) == Verdict::kFail) {
    return fail();
  }
  return static_cast<int>(
      syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
}

int unlinkat(int directory, const char* path, int flags) {
  if (judge((flags & AT_REMOVEDIR) != 0 ? "rmdir" : "unlink",
            path_at(directory, path), true) == Verdict::kFail) {
    return fail();
  }
  return static_cast<int>(syscall(SYS_unlinkat, directory, path, flags));
}

int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }

int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

}  // extern "C"
