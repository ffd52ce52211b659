// Bounds how far a host runs ahead of a device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <deque>
#include <memory>

namespace gpipe::internal {

// The actions of a rank that its host has issued and its device has not done.
//
// A copy from another device lies in memory of the copy stream. After its last
// use a caching allocator gives the memory to the next copy only once the
// device has come there. A host without bound would issue all copies of a step
// meanwhile, each into new memory: 1F1B would hold the inputs of all
// micro-batches instead of those in flight.
//
// Threads: used by the rank's worker only.
class RunAhead {
 public:
  // The device computes one action while the host issues the next one. The
  // second action is there so that the device need not wait for a host that
  // wakes up late.
  static constexpr std::size_t kActions = 2;

  explicit RunAhead(c10::Device device) : device_(device) {}

  // Blocks the host until the device has fewer than kActions actions to do.
  // Returns at once if the device has no streams. Throws c10::Error if the
  // device has failed.
  void wait();

  // Notes the end of an action, on the current stream of this thread. Throws
  // c10::Error if the device has failed.
  void end_action();

 private:
  const c10::Device device_;
  std::deque<std::shared_ptr<c10::Event>> under_way_;  // the end of each action
};

}  // namespace gpipe::internal
