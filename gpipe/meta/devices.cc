#include "gpipe/meta/devices.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstddef>
#include <limits>
#include <utility>

#include "gpipe/base/text/refuse.h"
#include "gpipe/libtorch/registration.h"

namespace gpipe::internal {
namespace {

thread_local c10::DeviceIndex current = -1;

// Replaces LibTorch's own guard for meta devices, which ignores the index.
struct MetaGuardImpl final
    : public c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::Meta> {
  explicit MetaGuardImpl(const c10::impl::DeviceGuardImplInterface* replaced)
      : replaced(replaced) {}
  c10::Device getDevice() const override { return {c10::kMeta, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kMeta, std::exchange(current, device.index())};
  }
  void setDevice(c10::Device device) const override {
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current = device.index();
  }
  // Kept reachable, so leak checkers do not report it.
  const c10::impl::DeviceGuardImplInterface* const replaced;
};

[[maybe_unused]] const bool registered = [] {
  if (!claim(kMetaKey, "devices")) return false;
  auto& entry = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(
      c10::kMeta)];
  entry = new MetaGuardImpl(entry.load());
  return true;
}();

}  // namespace

c10::DeviceIndex current_meta_device() { return current; }

std::vector<c10::Device> meta_devices(int64_t count) {
  constexpr int64_t kMost = std::numeric_limits<c10::DeviceIndex>::max() + 1;
  if (count > kMost) {
    refuse("a dry run of ", count, " partitions: LibTorch can number at most ",
           kMost, " devices");
  }
  std::vector<c10::Device> devices;
  for (int64_t index = 0; index < count; ++index) {
    devices.emplace_back(c10::kMeta, static_cast<c10::DeviceIndex>(index));
  }
  return devices;
}

at::Tensor to_meta_device(const at::Tensor& tensor, const c10::Device& device) {
  const c10::DeviceGuard guard(device);
  return tensor.to(device);
}

}  // namespace gpipe::internal
