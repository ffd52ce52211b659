#include "gpipe/meta/devices.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstddef>
#include <utility>

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
  auto& entry = c10::impl::device_guard_impl_registry[static_cast<std::size_t>(
      c10::kMeta)];
  entry = new MetaGuardImpl(entry.load());
  return true;
}();

}  // namespace

c10::DeviceIndex current_meta_device() { return current; }

}  // namespace gpipe::internal
