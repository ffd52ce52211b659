// A thread that does one task after the other.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "gpipe/runtime/bell.h"
#include "gpipe/runtime/origin.h"

namespace gpipe {

// Lives as long as the object; the destructor lets posted tasks end and joins,
// but in a fork of the process, where there is no such thread. Tasks must not
// throw. Threads: post() from anywhere.
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
  // What the thread uses.
  struct State {
    Bell bell;
    std::atomic<int> waiting{0};  // tasks, and the end
    std::mutex mutex;
    std::deque<std::function<void()>> tasks;
  };
  static void loop(State& state, int spins);

  const Origin origin_;
  std::unique_ptr<State> state_;
  std::thread thread_;
};

}  // namespace gpipe
