// A thread that runs one task after the other.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "gpipe/runtime/device/origin.h"
#include "gpipe/runtime/run/notifier.h"

namespace gpipe::internal {

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
