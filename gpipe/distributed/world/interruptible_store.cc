#include "gpipe/distributed/world/interruptible_store.h"

#include <algorithm>
#include <stdexcept>
#include <thread>

namespace gpipe::internal {
namespace {

// The first and the longest pause between two questions. Each is twice as long
// as the one before, so that many ranks that wait do not keep the store from
// answering.
constexpr std::chrono::milliseconds kPause{1}, kLongest{16};

}  // namespace

void InterruptibleStore::wait(const std::vector<std::string>& keys,
                              const std::chrono::milliseconds& timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto pause = kPause;
  while (!inner_->check(keys)) {
    if (*stopped_) throw std::runtime_error("it was aborted");
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::runtime_error("no value came in time for '" + keys.front() +
                               "'");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, kLongest);
  }
}

}  // namespace gpipe::internal
