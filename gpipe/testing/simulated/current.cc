#include "gpipe/testing/simulated/current.h"

#include <c10/util/Exception.h>

#include <utility>

#include "gpipe/testing/simulated/contexts.h"
#include "gpipe/testing/simulated/simulation.h"

namespace gpipe::simulated {
namespace {

thread_local c10::DeviceIndex device_here = 0;
thread_local c10::StreamId stream_here[kDevices] = {};

c10::Stream stream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kDeviceType, device), id);
}

}  // namespace

void check_index(c10::DeviceIndex device) {
  TORCH_CHECK(0 <= device && device < kDevices,
              "there is no device hpu:", static_cast<int>(device),
              " (simulated accelerators: ", static_cast<int>(kDevices), ")");
}

c10::DeviceIndex current_device() { return device_here; }

c10::DeviceIndex exchange_current_device(c10::DeviceIndex device) {
  check_index(device);
  if (device != device_here) make_context(device);
  return std::exchange(device_here, device);
}

void restore_current_device(c10::DeviceIndex device) noexcept {
  device_here = device;
}

c10::Stream current_stream(c10::DeviceIndex device) {
  if (device < 0) device = device_here;
  check_index(device);
  return stream(device, stream_here[device]);
}

c10::Stream exchange_current_stream(const c10::Stream& next) {
  const c10::DeviceIndex device = next.device_index();
  check_index(device);
  return stream(device, std::exchange(stream_here[device], next.id()));
}

}  // namespace gpipe::simulated
