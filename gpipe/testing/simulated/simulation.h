// The streams of the simulated accelerators, the order of their work, and the
// device, streams and random numbers of a thread.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
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

#include "gpipe/base/instruments.h"
#include "gpipe/testing/simulated/order.h"

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

// ---- The devices that this process uses.

// On a GPU, the first use of a device makes a context there, which takes some
// hundred megabytes of its memory. Becoming the current device is a use; being
// it from the start of a thread is none. Thread-safe.

// Notes that `device` is used.
void make_context(c10::DeviceIndex device);
// Returns whether `device` has been used.
bool has_context(c10::DeviceIndex device);
// Returns the devices that have been used since the last call of
// forget_contexts().
std::vector<c10::DeviceIndex> devices_with_context();
void forget_contexts();

// ---- The current device and streams of a thread, where its operators run.

// Throws c10::Error if there is no device with this index.
void check_index(c10::DeviceIndex device);

// Returns the current device of the calling thread.
c10::DeviceIndex current_device();
// Sets the current device and returns the one before. A device that was not
// the current one gets a context. Throws c10::Error if there is no
// device with this index.
c10::DeviceIndex exchange_current_device(c10::DeviceIndex device);
// Sets the current device at the end of a scope. The device gets no context
// before its first use, as with c10::cuda::MaybeSetDevice().
void restore_current_device(c10::DeviceIndex device) noexcept;

// Returns the current stream of the calling thread on `device`: the default
// stream unless the thread has set another. A negative index stands for the
// current device.
c10::Stream current_stream(c10::DeviceIndex device);
// Sets the current stream of the stream's device and returns the one before.
c10::Stream exchange_current_stream(const c10::Stream& stream);

// A scope in which `device` is the current device, such as c10::DeviceGuard.
class DeviceScope {
 public:
  explicit DeviceScope(c10::DeviceIndex device)
      : outer_(exchange_current_device(device)) {}
  ~DeviceScope() { restore_current_device(outer_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const c10::DeviceIndex outer_;
};

// ---- Random number generators of the simulated accelerators.

// The CPU's generator with the device of an accelerator. The same seed gives
// the same numbers as on the CPU. Using a generator of another device is an
// error.
class GeneratorImpl : public at::CPUGeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device);

 private:
  GeneratorImpl* clone_impl() const override;
};

// Returns the device's default generator, which lives as long as the process. A
// negative index stands for the current device.
const at::Generator& default_generator(c10::DeviceIndex device);

// Returns a CPU generator with the same state as `generator`. The state of
// `generator` does not change when numbers are drawn from the result; use
// set_state() for that.
at::Generator on_cpu(const at::Generator& generator);

}  // namespace gpipe::simulated
