// A thread that does one task after the other.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "gpipe/runtime/bell.h"

namespace gpipe {

// Lives as long as the object; the destructor lets posted tasks end and joins.
// Tasks must not throw. Threads: post() from anywhere.
class Worker {
 public:
  // `prepare` runs first on the new thread. `spins`: how often to look for the
  // next task before falling asleep, see Bell.
  explicit Worker(std::function<void()> prepare, int spins = 0);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void post(std::function<void()> task);

 private:
  void loop();

  const int spins_;
  Bell bell_;
  std::atomic<int> waiting_{0};  // tasks, and the end
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
  std::thread thread_;
};

}  // namespace gpipe
