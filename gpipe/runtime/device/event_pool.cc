#include "gpipe/runtime/device/event_pool.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

// Thread-safe.
class EventPool {
 public:
  // Device and whether the event has a time. LibTorch binds an event to the
  // device on which it is first recorded.
  using Key = std::tuple<c10::DeviceType, c10::DeviceIndex, bool>;

  // Never destroyed, because static objects may keep events, and because the
  // device may be gone when they are.
  static EventPool& get() {
    static auto* const pool = new EventPool();
    return *pool;
  }

  std::unique_ptr<c10::Event> take(const Key& key) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto& unused = unused_[key];
      if (!unused.empty()) {
        auto event = std::move(unused.back());
        unused.pop_back();
        return event;
      }
    }
    const auto& [type, index, timed] = key;
    // LibTorch's default flag makes events without times.
    return std::make_unique<c10::Event>(
        type, timed ? c10::EventFlag::BACKEND_DEFAULT
                    : c10::EventFlag::PYTORCH_DEFAULT);
  }

  void give_back(const Key& key, std::unique_ptr<c10::Event> event) {
    std::lock_guard<std::mutex> lock(mutex_);
    unused_[key].push_back(std::move(event));
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::vector<std::unique_ptr<c10::Event>>> unused_;
};

}  // namespace

std::shared_ptr<c10::Event> record_event(const c10::Device& device,
                                         bool timed) {
  // Without this guard LibTorch would set the thread's device of before, in a
  // way that makes a context on it (300 MB of a GPU that may belong to another
  // process).
  const c10::DeviceGuard on_device(device);
  const EventPool::Key key(device.type(), device.index(), timed);
  std::shared_ptr<c10::Event> event(
      EventPool::get().take(key).release(), [key](c10::Event* used) {
        EventPool::get().give_back(key, std::unique_ptr<c10::Event>(used));
      });
  event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace gpipe::internal
