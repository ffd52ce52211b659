#include "gpipe/runtime/device/stamp.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {

Stamp Stamp::now(const c10::Device& device) {
  Stamp stamp;
  if (has_streams(device)) {
    // LibTorch's default flag makes events without times.
    stamp.event_ = std::make_shared<c10::Event>(
        device.type(), c10::EventFlag::BACKEND_DEFAULT);
    stamp.event_->record(
        c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  } else {
    stamp.time_ = std::chrono::steady_clock::now();
  }
  return stamp;
}

void Stamp::wait() const {
  if (event_) event_->synchronize();
}

double Stamp::seconds_since(const Stamp& start) const {
  if (event_) {
    start.wait();
    wait();
    constexpr double kMilliseconds = 1e-3;
    return kMilliseconds * start.event_->elapsedTime(*event_);
  }
  return std::chrono::duration<double>(time_ - start.time_).count();
}

}  // namespace gpipe::internal
