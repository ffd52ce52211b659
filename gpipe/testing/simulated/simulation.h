// The streams of the simulated accelerators, and the order of their work.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/base/instruments/fail_nth.h"
#include "gpipe/testing/simulated/happens_before.h"
#include "gpipe/testing/simulated/queue.h"

namespace gpipe::simulated {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::HPU;
constexpr c10::DeviceIndex kDevices = 4;

// An event in a stream, reached when all earlier work of the stream is done.
// Thread-safe.
class Mark {
 public:
  explicit Mark(Clock clock) : clock_(std::move(clock)) {}

  // Marks the event as reached and wakes the waiting threads.
  void reach();
  bool reached() const { return reached_; }
  // Returns when the event was reached. Valid only once reached() is true.
  std::chrono::steady_clock::time_point time() const { return time_; }
  // Blocks until the event is reached.
  void wait() const;
  const Clock& clock() const { return clock_; }

 private:
  const Clock clock_;
  std::chrono::steady_clock::time_point time_;
  std::atomic<bool> reached_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
};

// Work for a stream.
struct Work {
  std::string name;
  std::vector<Access> accesses;
  std::function<void()> run;  // on the stream's thread; may throw
  // For a copy to another device: the stream there that waits for the copy.
  std::optional<c10::Stream> other = std::nullopt;
};

// The record of work that a stream has received.
struct Given {
  std::string name;
  c10::Stream stream;
  std::optional<c10::Stream> other;
  std::optional<std::int64_t> microbatch;
  std::int64_t bytes = 0;  // bytes of device memory that it writes
};

// How often a program has used the devices. Work that the simulation adds
// itself is not counted.
struct Counts {
  std::int64_t launches = 0;  // operators and copies
  // Those of them that are copies between devices, or with the host.
  std::int64_t copies = 0;
  std::int64_t host_waits = 0;  // of a host thread for a stream
  std::int64_t event_records = 0;
  std::int64_t stream_waits = 0;  // of a stream for an event

  Counts operator-(const Counts& other) const {
    return {launches - other.launches, copies - other.copies,
            host_waits - other.host_waits, event_records - other.event_records,
            stream_waits - other.stream_waits};
  }
};

// The operations of a device that can fail.
enum class Operation {
  kAllocation,
  kLaunch,  // enqueueing work
  kWork,    // running work: the host gets the error later
  kEvent,   // recording an event, or waiting for one
};

// What makes a host wait although its program does not ask for it. CUDA has all
// of these.
struct HostCosts {
  // The most operations that may wait in a stream; 0: no limit. A launch blocks
  // the host until there is room.
  std::size_t most_launches = 0;
  // Seconds that recording an event, or letting a stream wait for one, takes.
  double event_seconds = 0;
  // Whether the first use of an operator on a device waits until the device is
  // idle, as if its kernel had to be loaded.
  bool loads_operators = false;
};

// The streams of all devices. Thread-safe: work of different threads is ordered
// by one lock.
class Simulation {
 public:
  static Simulation& get();

  // new_stream() returns a stream that is not shared. pool_stream() returns one
  // of a pool of 32, in turn. Streams of high priority have a pool of their
  // own.
  c10::Stream new_stream(c10::DeviceIndex device);
  c10::Stream pool_stream(c10::DeviceIndex device, bool high_priority = false);

  // Adds work to a stream. Rethrows the exception of an earlier operation, as a
  // device that has failed does.
  void enqueue(const c10::Stream& stream, Work work);
  // Adds work to a stream, but never throws.
  void enqueue_always(const c10::Stream& stream, Work work);
  // Records an event on a stream.
  std::shared_ptr<Mark> record(const c10::Stream& stream);
  // Makes later work of a stream wait for the event.
  void block(const c10::Stream& stream, std::shared_ptr<Mark> mark);
  // Returns whether a stream has no work left.
  bool idle(const c10::Stream& stream);

  // Block until the event, stream or device is done. Later work of all streams
  // is ordered after it. The calls are counted, and rethrow the exception of an
  // operation.
  void host_wait(const Mark& mark);
  void host_wait(const c10::Stream& stream);
  void host_wait(c10::DeviceIndex device);
  // Blocks until all streams of the device are idle, without any effect on the
  // order.
  void quiesce(c10::DeviceIndex device);
  // Count what a program does with events.
  void count_record() { ++event_records_; }
  void count_stream_wait() { ++stream_waits_; }
  Counts counts() const {
    return {launches_, copies_, host_waits_, event_records_, stream_waits_};
  }

  // Counts an event that a program has made, and returns how many it has made.
  void count_event() { ++events_; }
  std::int64_t events() const { return events_; }

  // Memory for HappensBefore. `recorded`: streams that use the block.
  void add_block(void* begin, std::size_t bytes);
  void remove_block(void* begin);
  // Frees a block. Returns an event on each of the `recorded` streams; the
  // block may be used again once all of them are reached.
  std::vector<std::shared_ptr<Mark>> release_block(
      void* begin, const c10::Stream& owner,
      const std::vector<c10::Stream>& recorded);

  // Returns the object that makes an operation fail. It counts all devices
  // together.
  instruments::FailNth& failing(Operation operation) {
    return failing_[static_cast<std::size_t>(operation)];
  }

  void set_delays(const Delays& delays);
  // Sets the costs from now on. No operator counts as used before.
  void set_host_costs(const HostCosts& costs);
  // Takes the time of a call for an event.
  void pay_for_event();
  // Sets the function that returns the micro-batch of the calling thread, for
  // reports.
  void set_microbatch(std::optional<std::int64_t> (*microbatch)());
  std::vector<std::string> take_races();
  // Returns all work since the last call.
  std::vector<Given> take_trace();

 private:
  struct Line {
    std::size_t number;
    std::unique_ptr<Queue> queue;
  };

  Simulation() = default;
  Line& line(const c10::Stream& stream);  // needs mutex_
  std::shared_ptr<Mark> record_locked(const c10::Stream& stream);
  std::vector<std::shared_ptr<Mark>> record_all(c10::DeviceIndex device);
  // Blocks as HostCosts say before work is added to a stream.
  void wait_before_launch(const c10::Stream& stream, const std::string& name);
  void rethrow();

  // One lock orders all work; its cost does not matter in tests.
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Line> lines_;
  HappensBefore order_;
  std::vector<Given> trace_;
  Delays delays_;
  HostCosts costs_;
  std::set<std::pair<c10::DeviceIndex, std::string>> loaded_;
  std::optional<std::int64_t> (*microbatch_)() = nullptr;
  c10::StreamId next_stream_[kDevices] = {};
  struct Pool {
    std::vector<c10::StreamId> streams;
    std::uint64_t next = 0;
  };
  Pool pools_[kDevices][2];  // by high_priority
  std::exception_ptr error_;
  instruments::FailNth failing_[4];
  std::atomic<std::int64_t> launches_{0}, copies_{0}, host_waits_{0},
      event_records_{0}, stream_waits_{0}, events_{0};
};

}  // namespace gpipe::simulated
