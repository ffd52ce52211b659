#include "gpipe/distributed/links/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace gpipe::internal {
namespace {

// Nobody can make the file smaller, which would end the processes that have
// mapped it.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

// Written by one end but for `taken` and `requested`. The other end is trusted
// no more than what it sends: a position is only used modulo kNotices.
struct SharedMemory::Box {
  alignas(64) std::atomic<uint64_t> put{0};
  alignas(64) std::atomic<uint64_t> taken{0};
  std::atomic<uint32_t> requested{0};  // by the end that takes
  alignas(64) std::array<Frame, kNotices> notices;
};

struct SharedMemory::Layout {
  uint64_t token;
  Box boxes[2];                        // the maker puts into the first one
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
  ::new (memory) Layout;
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

SharedMemory::Box& SharedMemory::box_of(bool is_own) const {
  return memory_->boxes[is_own == is_maker_ ? 0 : 1];
}

bool SharedMemory::put(const Frame& notice) {
  Box& box = box_of(true);
  const uint64_t at = box.put.load(std::memory_order_relaxed);
  if (at - box.taken.load(std::memory_order_acquire) >= kNotices) return false;
  box.notices[at % kNotices] = notice;
  // In one order with the other end's request() and take(): either it takes
  // this notice, or take_request() finds its request.
  box.put.store(at + 1, std::memory_order_seq_cst);
  return true;
}

bool SharedMemory::take(Frame& notice) {
  Box& box = box_of(false);
  const uint64_t at = box.taken.load(std::memory_order_relaxed);
  const uint64_t count = box.put.load(std::memory_order_seq_cst) - at;
  if (count == 0) return false;
  notice = count <= kNotices ? box.notices[at % kNotices] : Frame{};
  box.taken.store(at + 1, std::memory_order_release);
  return true;
}

void SharedMemory::request(bool is_to_wake) {
  box_of(false).requested.store(is_to_wake, std::memory_order_seq_cst);
}

bool SharedMemory::take_request() {
  std::atomic<uint32_t>& requested = box_of(true).requested;
  return requested.load(std::memory_order_seq_cst) != 0 &&
         requested.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace gpipe::internal
