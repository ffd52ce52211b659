#include "gpipe/device_memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstddef>

#include "gpipe/runtime/device/stream.h"

namespace gpipe {
namespace {

// Returns the resident set of this process. Uses read() and no stream, whose
// buffer would need memory too.
std::optional<double> resident_bytes() {
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::array<char, 128> text{};
  const auto size = read(file, text.data(), text.size() - 1);
  close(file);
  long all = 0, resident = 0;  // pages
  if (size <= 0 || std::sscanf(text.data(), "%ld %ld", &all, &resident) != 2) {
    return std::nullopt;
  }
  static const auto page = static_cast<double>(sysconf(_SC_PAGESIZE));
  return page * static_cast<double>(resident);
}

}  // namespace

std::optional<double> device_memory(const c10::Device& device) {
  if (device.is_cpu()) return resident_bytes();
  if (!internal::has_streams(device)) return std::nullopt;
  auto* const allocator =
      dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (!allocator) return std::nullopt;
  // CUDA's allocator throws before LibTorch has used the device type.
  if (!allocator->initialized()) return 0;
  constexpr auto kAll =
      static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return static_cast<double>(
      allocator->getDeviceStats(internal::with_index(device).index())
          .allocated_bytes[kAll]
          .current);
}

}  // namespace gpipe
