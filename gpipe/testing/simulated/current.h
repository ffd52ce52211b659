// Which device and stream operators of a thread go to.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace gpipe::simulated {

// Throws for an index that there is not.
void check_index(c10::DeviceIndex device);

c10::DeviceIndex current_device();
// Returns the one before. Throws for an index that there is not.
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);

// The default stream of the device unless the thread has chosen another.
c10::Stream current_stream(c10::DeviceIndex device);
c10::Stream exchange_current_stream(const c10::Stream& stream);

// Makes `device` the current one while in scope.
class DeviceScope {
 public:
  explicit DeviceScope(c10::DeviceIndex device)
      : outer_(exchange_current_device(device)) {}
  ~DeviceScope() { exchange_current_device(outer_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const c10::DeviceIndex outer_;
};

}  // namespace gpipe::simulated
