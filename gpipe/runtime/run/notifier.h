// Lets one thread wait for a condition that other threads make true.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "gpipe/base/threads/exit_gate.h"

namespace gpipe::internal {

// A notifier: a condition variable for one waiting thread that spins before it
// sleeps. Thread-safe.
class Notifier {
 public:
  // Blocks until `condition` is true. Another thread must make it true before
  // it calls notify(). `condition` is evaluated while other threads may change
  // its state, so it must read, for example, an atomic flag.
  //
  // `spins`: how often to test the condition before the thread sleeps.
  // Consecutive cells often follow within microseconds, and waking a thread
  // costs tens of microseconds.
  template <typename Condition>
  void wait(Condition condition, int spins) {
    for (int k = 0; k < spins; ++k) {
      if (condition()) return;
      std::this_thread::yield();
    }
    const WaitScope waiting;
    std::unique_lock<std::mutex> lock(mutex_);
    notified_.wait(lock, condition);
  }

  // Wakes the waiting thread to test its condition again.
  void notify() {
    // The lock ensures that a waiting thread either has not tested its
    // condition yet or is asleep.
    { std::lock_guard<std::mutex> lock(mutex_); }
    notified_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable notified_;
};

}  // namespace gpipe::internal
