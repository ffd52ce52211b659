#include "gpipe/distributed/links/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace gpipe::internal {
namespace {

// Nobody can make the file smaller, which would end the processes that have
// mapped it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

struct SharedMemory::Layout {
  uint64_t token;
  alignas(4096) char rings[2][kRing];  // the maker writes the first one
};

SharedMemory::Layout* SharedMemory::map(const Descriptor& file) {
  void* const memory = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE,
                              MAP_SHARED, file.get(), 0);
  return memory == MAP_FAILED ? nullptr : static_cast<Layout*>(memory);
}

std::unique_ptr<SharedMemory> SharedMemory::make(uint64_t token) {
  Descriptor file(
      ::memfd_create("gpipe-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0 || ::ftruncate(file.get(), sizeof(Layout)) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return nullptr;
  }
  Layout* const memory = map(file);
  if (!memory) return nullptr;
  memory->token = token;
  return std::unique_ptr<SharedMemory>(
      new SharedMemory(std::move(file), memory, /*is_maker=*/true));
}

std::unique_ptr<SharedMemory> SharedMemory::open(const Place& place,
                                                 uint64_t token) {
  if (place.process <= 0 || place.file < 0) return nullptr;
  const std::string path = "/proc/" + std::to_string(place.process) + "/fd/" +
                           std::to_string(place.file);
  // The place may be a lie: a device must not even be opened.
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size != static_cast<off_t>(sizeof(Layout)) ||
      status.st_uid != ::geteuid()) {
    return nullptr;
  }
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  // Only memory has seals.
  if (file.get() < 0 || ::fcntl(file.get(), F_GET_SEALS) != kSeals) {
    return nullptr;
  }
  Layout* const memory = map(file);
  if (!memory) return nullptr;
  std::unique_ptr<SharedMemory> result(
      new SharedMemory(Descriptor(), memory, /*is_maker=*/false));
  return memory->token == token ? std::move(result) : nullptr;
}

SharedMemory::SharedMemory(Descriptor file, Layout* memory, bool is_maker)
    : file_(std::move(file)), memory_(memory), is_maker_(is_maker) {}

SharedMemory::~SharedMemory() { ::munmap(memory_, sizeof(Layout)); }

SharedMemory::Place SharedMemory::place() const {
  return {static_cast<int32_t>(::getpid()), file_.get()};
}

void SharedMemory::write(uint64_t at, const void* from, std::size_t size) {
  char* const ring = memory_->rings[is_maker_ ? 0 : 1];
  const std::size_t begin = at % kRing;
  const std::size_t first = std::min(size, kRing - begin);
  std::memcpy(ring + begin, from, first);
  std::memcpy(ring, static_cast<const char*>(from) + first, size - first);
}

void SharedMemory::read(uint64_t at, void* to, std::size_t size) const {
  const char* const ring = memory_->rings[is_maker_ ? 1 : 0];
  const std::size_t begin = at % kRing;
  const std::size_t first = std::min(size, kRing - begin);
  std::memcpy(to, ring + begin, first);
  std::memcpy(static_cast<char*>(to) + first, ring, size - first);
}

}  // namespace gpipe::internal
