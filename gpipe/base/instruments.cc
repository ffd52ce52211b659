#include "gpipe/base/instruments.h"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

namespace gpipe::instruments {
namespace {

// The counted bytes are stored before the block, because only the data pointer
// is known when the block is freed. 64 bytes keep the alignment that kernels
// need.
constexpr std::size_t kHeader = 64;

std::atomic<int64_t> live{0};
std::atomic<int64_t> peak{0};
// The only thread whose tensors count. All threads' do if it is no thread.
std::atomic<std::thread::id> only{};

bool counts_here() {
  const std::thread::id thread = only;
  return thread == std::thread::id() || thread == std::this_thread::get_id();
}

void count(int64_t bytes) {
  const int64_t now = live += bytes;
  int64_t highest = peak;
  while (now > highest && !peak.compare_exchange_weak(highest, now)) {
  }
}

void release(void* data) {
  if (data == nullptr) return;
  char* block = static_cast<char*>(data) - kHeader;
  int64_t counted;
  std::memcpy(&counted, block, sizeof(counted));
  count(-counted);
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
    const int64_t counted = counts_here() ? static_cast<int64_t>(bytes) : 0;
    std::memcpy(block, &counted, sizeof(counted));
    count(counted);
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

void CountingAllocator::ignore_other_threads() {
  only = std::this_thread::get_id();
}

namespace {

constexpr auto kAll =
    static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

c10::DeviceAllocator& allocator_of(const c10::Device& device) {
  at::globalContext().lazyInitDevice(device.type());
  auto* const allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  TORCH_CHECK(allocator, "LibTorch does not count the bytes of tensors on ",
              device);
  return *allocator;
}

c10::CachingDeviceAllocator::DeviceStats stats_of(const c10::Device& device) {
  return allocator_of(device).getDeviceStats(device.index());
}

}  // namespace

int64_t live_bytes(const c10::Device& device) {
  if (device.is_cpu()) return CountingAllocator::live_bytes();
  return stats_of(device).allocated_bytes[kAll].current;
}

int64_t peak_bytes(const c10::Device& device) {
  if (device.is_cpu()) return CountingAllocator::peak_bytes();
  return stats_of(device).allocated_bytes[kAll].peak;
}

void reset_peak_bytes(const c10::Device& device) {
  if (device.is_cpu()) {
    CountingAllocator::reset_peak();
  } else {
    allocator_of(device).resetPeakStats(device.index());
  }
}

std::optional<int64_t> peak_reserved_bytes(const c10::Device& device) {
  if (device.is_cpu()) return std::nullopt;
  return stats_of(device).reserved_bytes[kAll].peak;
}

}  // namespace gpipe::instruments
