// A thread that runs one task after the other, and how threads wait for each
// other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "gpipe/base/threads.h"
#include "gpipe/runtime/device/origin.h"

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

// Counts down to zero and notifies a waiting thread. Owned jointly
// (shared_ptr), because the waiting thread may have gone on before the last
// notify() has returned.
class Countdown {
 public:
  explicit Countdown(std::size_t count) : left_(count) {}

  void count() {
    if (left_.fetch_sub(1) == 1) notifier_.notify();
  }
  void wait(int spins) {
    notifier_.wait([this] { return left_ == 0; }, spins);
  }

 private:
  std::atomic<std::size_t> left_;
  Notifier notifier_;
};

// A worker thread. The destructor runs the posted tasks to their end and joins
// the thread, except in a forked process, where the thread does not exist.
// Tasks must not throw.
// Threads: post() may be called from any thread.
class Worker {
 public:
  // `prepare` runs first on the new thread. `spins`: how often to test for the
  // next task before the thread sleeps, see Notifier.
  explicit Worker(std::function<void()> prepare, int spins = 0);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Adds a task; tasks run in order.
  void post(std::function<void()> task);

  // Blocks until the tasks that were posted before have run.
  void flush();

 private:
  // The state that the thread shares with the object.
  struct State {
    Notifier notifier;
    std::atomic<int> waiting{0};      // number of tasks, plus one for the end
    std::atomic<bool> passes{false};  // see WorkScope
    std::mutex mutex;
    std::deque<std::function<void()>> tasks;
  };
  static void loop(State& state, int spins);

  const Origin origin_;
  std::unique_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gpipe::internal
