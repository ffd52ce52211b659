#include "gpipe/testing/allocation_meter.h"

#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace gpipe::testing {
namespace {

struct Counts {
  bool on = false;
  int64_t largest = 0;
  int64_t live = 0;
  int64_t peak = 0;
};

thread_local Counts counts;

void count(std::size_t size) {
  if (!counts.on) return;
  const auto bytes = static_cast<int64_t>(size);
  counts.largest = std::max(counts.largest, bytes);
  counts.live += bytes;
  counts.peak = std::max(counts.peak, counts.live);
}

void uncount(std::size_t size) {
  if (counts.on) counts.live -= static_cast<int64_t>(size);
}

}  // namespace
}  // namespace gpipe::testing

#ifdef __SANITIZE_ADDRESS__

extern "C" {
// Declarations of <sanitizer/allocator_interface.h>, which g++ 12 lacks on some
// systems.
int __sanitizer_install_malloc_and_free_hooks(
    void (*malloc_hook)(const volatile void*, std::size_t),
    void (*free_hook)(const volatile void*));
std::size_t __sanitizer_get_allocated_size(const volatile void* allocated);
}

namespace gpipe::testing {
namespace {

void on_malloc(const volatile void*, std::size_t size) { count(size); }
void on_free(const volatile void* memory) {
  if (counts.on && memory) uncount(__sanitizer_get_allocated_size(memory));
}
const int installed =
    __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);

}  // namespace
}  // namespace gpipe::testing

#else

// The other forms of operator new and delete call these.
void* operator new(std::size_t size) {
  void* memory = std::malloc(std::max<std::size_t>(size, 1));
  if (!memory) throw std::bad_alloc();
  gpipe::testing::count(malloc_usable_size(memory));
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory) gpipe::testing::uncount(malloc_usable_size(memory));
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

#endif

namespace gpipe::testing {

AllocationMeter::AllocationMeter() {
  counts = {};
  counts.on = true;
}

AllocationMeter::~AllocationMeter() { counts.on = false; }

int64_t AllocationMeter::largest() const { return counts.largest; }
int64_t AllocationMeter::peak() const { return counts.peak; }

}  // namespace gpipe::testing
