#include "gpipe/distributed/channel/device_groups.h"

#include <memory>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>

#include "gpipe/base/threads/background_thread.h"

namespace gpipe::internal {
namespace {

// The pause between two checks whether a transfer is complete. It is shorter
// than a transfer, and long enough to use little of a core.
constexpr std::chrono::microseconds kPollInterval{20};

}  // namespace

std::future<void> close_all(std::vector<DeviceGroup> groups,
                            void (c10d::Backend::*close)()) {
  // Done when the last of its owners is gone: the threads, and this call.
  const std::shared_ptr<std::promise<void>> all(new std::promise<void>(),
                                                [](std::promise<void>* done) {
                                                  done->set_value();
                                                  delete done;
                                                });
  auto closed = all->get_future();
  for (DeviceGroup& each : groups) {
    background_thread([group = std::move(each), close, all]() mutable {
      try {
        ((*group).*close)();
      } catch (const std::exception&) {
      }
      group.reset();
    }).detach();
  }
  return closed;
}

bool HostWork::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + timeout;
  while (!inner_->isCompleted()) {
    if (aborted_) throw std::runtime_error("it was aborted");
    if (Clock::now() >= deadline) throw std::runtime_error("it took too long");
    std::this_thread::sleep_for(kPollInterval);
  }
  if (inner_->exception()) std::rethrow_exception(inner_->exception());
  inner_->synchronize();
  return true;
}

Turn::Turn(const c10::Device& device, const std::function<void()>& check)
    : state_(state_of(device)) {
  std::unique_lock<std::mutex> lock(state_.mutex);
  while (state_.is_taken) {
    // Nobody notifies when `check` would throw.
    state_.changed.wait_for(lock, kCheckInterval);
    if (state_.is_taken) check();
  }
  state_.is_taken = true;
}

Turn::~Turn() {
  {
    std::lock_guard<std::mutex> lock(state_.mutex);
    state_.is_taken = false;
  }
  state_.changed.notify_one();
}

Turn::State& Turn::state_of(const c10::Device& device) {
  static std::mutex mutex;
  static auto* const states = new std::unordered_map<c10::Device, State>();
  std::lock_guard<std::mutex> lock(mutex);
  return (*states)[device];
}

}  // namespace gpipe::internal
