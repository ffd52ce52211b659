// A thread that does one task after the other.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace gpipe {

// Lives as long as the object; the destructor lets posted tasks end and joins.
// Tasks must not throw. Threads: post() from anywhere.
class Worker {
 public:
  // `prepare` runs first on the new thread.
  explicit Worker(std::function<void()> prepare);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void post(std::function<void()> task);

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace gpipe
