// Times of a device's work, on a device of any type.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <memory>

namespace gpipe::internal {

// The time at which a device reaches a point of its current stream. On a device
// with streams it is an event with a time, and the host does not wait for it.
// On other devices it is the host's clock. A default-constructed stamp is
// empty.
//
// Threads: may be taken on one thread and read on another, once it was passed
// there.
class Stamp {
 public:
  Stamp() = default;

  // Takes a stamp on the current stream of `device` on this thread.
  static Stamp now(const c10::Device& device);

  // Blocks until the device has reached the stamp.
  void wait() const;

  // Returns the seconds from `start`, a stamp of the same device. The host
  // waits for both.
  double seconds_since(const Stamp& start) const;

 private:
  std::shared_ptr<c10::Event> event_;
  std::chrono::steady_clock::time_point time_;
};

}  // namespace gpipe::internal
