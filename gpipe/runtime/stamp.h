// Times of what a device does, on any device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <memory>

namespace gpipe {

// When a device came to what its current stream was given next: an event with a
// time on a device with streams, which the host does not wait for; the clock
// elsewhere. A default-constructed one is none.
//
// Threads: may be taken on one thread and read on another, once handed over.
class Stamp {
 public:
  Stamp() = default;

  // On the current stream of `device` on this thread.
  static Stamp now(const c10::Device& device);

  // Until the device has come to it.
  void wait() const;

  // From `start`, a stamp of the same device. The host waits for both.
  double seconds_since(const Stamp& start) const;

 private:
  std::shared_ptr<c10::Event> event_;
  std::chrono::steady_clock::time_point time_;
};

}  // namespace gpipe
