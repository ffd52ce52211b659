// The order of the streams' work: the queue of a stream, and accesses to memory
// that nothing orders. No LibTorch.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace gpipe::simulated {

// ---- Finds accesses to memory that are not ordered, whatever their timing
// was.

// A vector clock (Mattern 1988) with one entry per stream: how much of each
// stream's work is known to be done.
class Clock {
 public:
  std::uint64_t at(std::size_t stream) const {
    return stream < times_.size() ? times_[stream] : 0;
  }
  // Sets the entry of `stream`.
  void set(std::size_t stream, std::uint64_t time);
  // Sets each entry to the larger of both clocks.
  void merge(const Clock& other);

 private:
  std::vector<std::uint64_t> times_;
};

// The bytes [begin, end) that an operation reads or writes.
struct Access {
  std::uintptr_t begin = 0, end = 0;
  bool write = false;
};

// A detector of races between streams. It follows the work of the streams, the
// events that order the work, and the memory that the work accesses. Two
// operations on different streams race if they access the same byte, one of
// them writes, and neither an event nor a wait of the host orders them. A race
// is found whatever the timing of the run was.
//
// All host threads share one clock; which thread waited is ignored. So a
// missing synchronisation between host threads is not found here (TSan finds
// it). Everything that is reported is a race.
//
// Threads: the caller must serialise the calls, in the order in which work is
// enqueued.
class HappensBefore {
 public:
  // Adds the next operation on `stream`, with its accesses.
  void operate(std::size_t stream, const std::string& name,
               std::optional<std::int64_t> microbatch,
               const std::vector<Access>& accesses);

  // Records an event: returns the clock of the work that is done when the last
  // operation of `stream` is.
  Clock record(std::size_t stream);
  // Orders later operations on `stream` after `clock`.
  void wait(std::size_t stream, const Clock& clock);
  // Orders later operations on all streams after `clock`.
  void host_waited(const Clock& clock);

  // Adds a block of memory, without any earlier accesses.
  void add_block(std::uintptr_t begin, std::uintptr_t end);
  // Removes a block. Its accesses are no longer checked.
  void remove_block(std::uintptr_t begin);
  // Marks the block as freed by its owner. `stream`: the stream that the block
  // was allocated for. `recorded`: the streams recorded for it. The block may
  // be used again after all work that these streams have so far. An access that
  // is not done by then races with the next use of the block.
  void release_block(std::uintptr_t begin, std::size_t stream,
                     const std::vector<std::size_t>& recorded);

  // Sets the name of a stream in reports. The default is "stream 3", for
  // example.
  void name_stream(std::size_t stream, std::string name);

  // Returns one text per race found since the last call, with both operations,
  // their streams and micro-batches.
  std::vector<std::string> take_races();

 private:
  struct Past {
    Access access;
    std::size_t stream;
    std::uint64_t time;
    std::string name;
    std::optional<std::int64_t> microbatch;
  };
  struct Block {
    std::uintptr_t end = 0;
    std::vector<Past> history;
  };

  Block* block_of(const Access& access, std::uintptr_t& begin);
  std::string describe(const Past& past) const;
  void report(const Past& first, const Past& second, std::uintptr_t begin,
              const Block& block);
  Clock& clock(std::size_t stream);

  std::vector<Clock> clocks_;  // by stream
  Clock host_;
  std::map<std::uintptr_t, Block> blocks_;  // by begin
  std::map<std::size_t, std::string> names_;
  std::vector<std::string> races_;
};

// ---- The queue of a stream, with a thread of its own.

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
