// The queue of a stream, with a thread of its own.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

namespace gpipe::simulated {

// Random delays of operations. With `probability` a stream sleeps before an
// operation, for a time between 0 and `seconds`. The sequence depends only on
// `seed` and the stream.
struct Delays {
  std::uint64_t seed = 0;
  double probability = 0;
  double seconds = 0;
};

// A FIFO of tasks. The queue's own thread runs them one after the other.
// Thread-safe.
class Queue {
 public:
  // `number`: the stream's number, for its delays. `prepare`: runs first on the
  // new thread, which lives as long as the process. `sleep`: waits for a delay;
  // tests replace it.
  explicit Queue(std::uint64_t number, std::function<void()> prepare,
                 std::function<void(double seconds)> sleep = sleep_for);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Adds a task, which must not throw. `delayed`: whether the task may be
  // delayed as Delays says.
  void push(std::function<void()> task, bool delayed = false);
  // Adds a short task that notifies others that all earlier tasks are done. It
  // does not make the queue busy: after the notification, idle() returns true
  // if no task follows.
  void push_signal(std::function<void()> task);
  // Blocks until fewer than `most` tasks wait for their turn.
  void wait_until_below(std::size_t most);
  // Returns whether all tasks are done.
  bool idle() const;
  // Sets the delays and restarts their sequence.
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
  std::condition_variable filled_, taken_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  Delays delays_;
  std::mt19937_64 random_;
};

}  // namespace gpipe::simulated
