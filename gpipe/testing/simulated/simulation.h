// The streams of the simulated accelerators, and what orders them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/fail_nth.h"
#include "gpipe/testing/simulated/happens_before.h"
#include "gpipe/testing/simulated/queue.h"

namespace gpipe::simulated {

constexpr c10::DeviceType kDeviceType = c10::DeviceType::HPU;
constexpr c10::DeviceIndex kDevices = 4;

// A point in a stream, reached when all that it was given before is done.
class Mark {
 public:
  explicit Mark(Clock clock) : clock_(std::move(clock)) {}

  void reach();
  bool reached() const { return reached_; }
  // When that was; only once it has been.
  std::chrono::steady_clock::time_point time() const { return time_; }
  void wait() const;
  const Clock& clock() const { return clock_; }

 private:
  const Clock clock_;
  std::chrono::steady_clock::time_point time_;
  std::atomic<bool> reached_{false};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
};

// What a stream is given.
struct Work {
  std::string name;
  std::vector<Access> accesses;
  std::function<void()> run;  // on the stream's thread; may throw
  // Of a copy to another device: the stream there that waits for it.
  std::optional<c10::Stream> other = std::nullopt;
};

// Work that has been given.
struct Given {
  std::string name;
  c10::Stream stream;
  std::optional<c10::Stream> other;
  std::optional<std::int64_t> microbatch;
  std::int64_t bytes = 0;  // of device memory that it writes
};

// What a device can fail at.
enum class Operation {
  kAllocation,
  kLaunch,  // to be given work
  kWork,    // to do it: the host hears of it later
  kEvent,   // to record an event, and to wait for one
};

// Threads: any. Work of different threads is ordered as they take the lock.
class Simulation {
 public:
  static Simulation& get();

  // A stream that nobody else has, and one of the 32 of a pool in turn.
  c10::Stream new_stream(c10::DeviceIndex device);
  c10::Stream pool_stream(c10::DeviceIndex device);

  // Rethrows what an earlier operation threw, as a device that has failed.
  void enqueue(const c10::Stream& stream, Work work);
  // The same, but never throws.
  void enqueue_always(const c10::Stream& stream, Work work);
  std::shared_ptr<Mark> record(const c10::Stream& stream);
  void block(const c10::Stream& stream, std::shared_ptr<Mark> mark);
  bool idle(const c10::Stream& stream);

  // The host waits, and knows then that it is done. Counted. Rethrows.
  void host_wait(const Mark& mark);
  void host_wait(const c10::Stream& stream);
  void host_wait(c10::DeviceIndex device);
  // Until all streams of the device are idle; leaves no trace in the order.
  void quiesce(c10::DeviceIndex device);
  // How often the host has waited.
  std::int64_t host_waits() const { return host_waits_; }

  // Memory; see HappensBefore. `recorded`: streams that use the block.
  void add_block(void* begin, std::size_t bytes);
  void remove_block(void* begin);
  // Marks on the streams `recorded`, to be reached before the block is used
  // again.
  std::vector<std::shared_ptr<Mark>> release_block(
      void* begin, const c10::Stream& owner,
      const std::vector<c10::Stream>& recorded);

  // Of all devices together.
  testing::FailNth& failing(Operation operation) {
    return failing_[static_cast<std::size_t>(operation)];
  }

  void set_delays(const Delays& delays);
  // Tells the micro-batch that the calling thread works on, for reports.
  void set_microbatch(std::optional<std::int64_t> (*microbatch)());
  std::vector<std::string> take_races();
  // All work since the last call.
  std::vector<Given> take_trace();

 private:
  struct Line {
    std::size_t number;
    std::unique_ptr<Queue> queue;
  };

  Simulation() = default;
  Line& line(const c10::Stream& stream);  // under the lock
  std::shared_ptr<Mark> record_locked(const c10::Stream& stream);
  std::vector<std::shared_ptr<Mark>> record_all(c10::DeviceIndex device);
  void rethrow();

  // One lock for the order of all work: what it costs does not matter here.
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, Line> lines_;
  HappensBefore order_;
  std::vector<Given> trace_;
  Delays delays_;
  std::optional<std::int64_t> (*microbatch_)() = nullptr;
  c10::StreamId next_stream_[kDevices] = {};
  std::uint64_t next_of_pool_[kDevices] = {};
  std::vector<c10::StreamId> pool_[kDevices];
  std::exception_ptr error_;
  testing::FailNth failing_[4];
  std::atomic<std::int64_t> host_waits_{0};
};

}  // namespace gpipe::simulated
