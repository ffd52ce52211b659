#include "gpipe/runtime/device/stamp.h"

#include <c10/core/DeviceGuard.h>

#include "gpipe/runtime/device/event_pool.h"
#include "gpipe/runtime/device/stream.h"

namespace gpipe::internal {

Stamp Stamp::now(const c10::Device& device) {
  Stamp stamp;
  if (has_streams(device)) {
    stamp.event_ = record_event(device, /*timed=*/true);
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
    const c10::DeviceGuard on_device(event_->device());  // see record_event()
    return kMilliseconds * start.event_->elapsedTime(*event_);
  }
  return std::chrono::duration<double>(time_ - start.time_).count();
}

}  // namespace gpipe::internal
