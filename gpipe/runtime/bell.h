// Lets one thread wait until others have brought something about.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace gpipe {

class Bell {
 public:
  // Returns once `condition` is true. It must be made true before ring(), by
  // something that other threads may do at any time (such as an atomic flag).
  //
  // Looks again `spins` times before it sleeps: cells often follow each other
  // within microseconds, and to wake a thread costs tens of them.
  template <typename Condition>
  void wait(Condition condition, int spins) {
    for (int k = 0; k < spins; ++k) {
      if (condition()) return;
      std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    rung_.wait(lock, condition);
  }

  void ring() {
    // The lock makes sure that a waiter is either before its look at the
    // condition or asleep.
    { std::lock_guard<std::mutex> lock(mutex_); }
    rung_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable rung_;
};

}  // namespace gpipe
