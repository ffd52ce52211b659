#include "gpipe/faults/watchdog.h"

#include <cstdlib>
#include <iostream>
#include <utility>

namespace gpipe::faults {

Watchdog::Watchdog(std::chrono::seconds deadline,
                   std::function<std::string()> describe)
    : deadline_(deadline),
      describe_(std::move(describe)),
      thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::feed() {
  std::lock_guard<std::mutex> lock(mutex_);
  fed_ = true;
}

void Watchdog::watch() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!changed_.wait_for(lock, deadline_, [this] { return ends_; })) {
    if (std::exchange(fed_, false)) continue;
    std::cerr << "hangs: nothing for " << deadline_.count() << " s\n"
              << describe_() << std::flush;
    std::abort();
  }
}

}  // namespace gpipe::faults
