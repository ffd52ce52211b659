#include "gpipe/base/instruments/tensor_bytes.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include "gpipe/base/instruments/counting_allocator.h"

namespace gpipe::instruments {
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
