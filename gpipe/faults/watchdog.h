// Ends a test that hangs, and prints where.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace gpipe::faults {

// A thread that aborts the process and prints the result of `describe` if
// feed() is not called for one to two deadlines. Thread-safe.
class Watchdog {
 public:
  Watchdog(std::chrono::seconds deadline,
           std::function<std::string()> describe);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void feed();

 private:
  void watch();

  const std::chrono::seconds deadline_;
  const std::function<std::string()> describe_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool fed_ = true, ends_ = false;
  std::thread thread_;
};

}  // namespace gpipe::faults
