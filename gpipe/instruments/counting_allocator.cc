#include "gpipe/instruments/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace gpipe::instruments {
namespace {

// The size is stored before the block, because only the data pointer is known
// when the block is freed. 64 bytes keep the alignment that kernels need.
constexpr std::size_t kHeader = 64;

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};

void count(int64_t bytes) {
  const int64_t now = live += bytes;
  int64_t highest = peak;
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
}

void release(void* data) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - kHeader;
  std::size_t bytes;
  std::memcpy(&bytes, block, sizeof(bytes));
  count(-static_cast<int64_t>(bytes));
  std::free(block);
}

class Counting : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::kCPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    CountingAllocator::failing().pass();
    const std::size_t rounded = (bytes + kHeader - 1) / kHeader * kHeader;
    void* block = std::aligned_alloc(kHeader, kHeader + rounded);
    if (block == nullptr) throw std::bad_alloc();
    std::memcpy(block, &bytes, sizeof(bytes));
    count(static_cast<int64_t>(bytes));
    char* data = static_cast<char*>(block) + kHeader;
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};

}  // namespace

void CountingAllocator::install() {
  static Counting allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/200);
}

FailNth& CountingAllocator::failing() {
  static FailNth failing;
  return failing;
}

int64_t CountingAllocator::live_bytes() { return live; }
int64_t CountingAllocator::peak_bytes() { return peak; }
void CountingAllocator::reset_peak() { peak = live.load(); }

}  // namespace gpipe::instruments
