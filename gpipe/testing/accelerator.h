// Assigns a test's partitions to accelerators.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <cstdlib>

namespace gpipe::testing {

// Returns the accelerator of `partition`, in turn among `count` devices. The
// variable GPIPE_TEST_DEVICES can set a smaller count (see devices.h).
inline c10::Device accelerator(c10::DeviceType type, int64_t count,
                               int64_t partition) {
  const char* limit = std::getenv("GPIPE_TEST_DEVICES");
  if (limit && std::atoi(limit) > 0 && std::atoi(limit) < count) {
    count = std::atoi(limit);
  }
  return c10::Device(type, static_cast<c10::DeviceIndex>(partition % count));
}

}  // namespace gpipe::testing
