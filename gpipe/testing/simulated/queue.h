// A stream's queue, with a thread of its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

namespace gpipe::simulated {

// Before an operation is done a stream sleeps, with `probability`, for a time
// between 0 and `seconds`. The sequence depends on `seed` and the stream only.
struct Delays {
  std::uint64_t seed = 0;
  double probability = 0;
  double seconds = 0;
};

// Tasks are done one after the other, on the queue's thread. Threads: any.
class Queue {
 public:
  // `prepare` runs first on the new thread, which lives as long as the
  // process. `sleep`: how delays pass, for tests.
  explicit Queue(std::uint64_t number, std::function<void()> prepare,
                 std::function<void(double seconds)> sleep = sleep_for);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Must not throw. `delayed`: may be held up as Delays say.
  void push(std::function<void()> task, bool delayed = false);
  // A quick task that tells others that those before it are done, and leaves
  // the queue alone: whoever learns of it finds the queue idle.
  void push_signal(std::function<void()> task);
  // Whether all that was pushed is done.
  bool idle() const;
  void set_delays(const Delays& delays);

 private:
  struct Task {
    std::function<void()> run;
    bool delayed, signal;
  };
  static void sleep_for(double seconds);
  void add(Task task);
  void loop();
  double next_delay();

  const std::uint64_t number_;
  const std::function<void(double)> sleep_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  Delays delays_;
  std::mt19937_64 random_;
};

}  // namespace gpipe::simulated
