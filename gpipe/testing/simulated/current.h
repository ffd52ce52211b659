// The current device and streams of a thread, where its operators run.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace gpipe::simulated {

// Throws c10::Error if there is no device with this index.
void check_index(c10::DeviceIndex device);

// Returns the current device of the calling thread.
c10::DeviceIndex current_device();
// Sets the current device and returns the one before. A device that was not
// the current one gets a context (contexts.h). Throws c10::Error if there is no
// device with this index.
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);
// Sets the current device at the end of a scope. The device gets no context
// before its first use, as with c10::cuda::MaybeSetDevice().
void restore_current_device(c10::DeviceIndex device) noexcept;

// Returns the current stream of the calling thread on `device`: the default
// stream unless the thread has set another. A negative index stands for the
// current device.
c10::Stream current_stream(c10::DeviceIndex device);
// Sets the current stream of the stream's device and returns the one before.
c10::Stream exchange_current_stream(const c10::Stream& stream);

// A scope in which `device` is the current device, such as c10::DeviceGuard.
class DeviceScope {
 public:
  explicit DeviceScope(c10::DeviceIndex device)
      : outer_(exchange_current_device(device)) {}
  ~DeviceScope() { restore_current_device(outer_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const c10::DeviceIndex outer_;
};

}  // namespace gpipe::simulated
