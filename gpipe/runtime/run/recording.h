// The times of a run of a schedule.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "gpipe/device_memory.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe::internal {

// Records times, copies and memory of one run.
// Threads: each rank's entries are written by its worker while a schedule runs.
class Recording {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `devices`: by rank. `memory`: returns the bytes in use; not called if
  // empty.
  Recording(std::vector<c10::Device> devices, MemoryReader memory);

  // Starts the recording. Waits until the current streams have done their work,
  // so that the times of all devices count from the same point. Call on the
  // caller's thread.
  void begin();
  // Called before and after each action of a rank, on its worker.
  void action_starts(std::size_t rank, const Action& action);
  void action_ends(std::size_t rank);
  // Returns the log of copies that the rank's worker makes from other devices,
  // and to and from the host.
  CopyLog& copies(std::size_t rank) { return copies_[rank]; }
  // Records a message between processes, by the clock of the host. `from`,
  // `to`: ranks. Thread-safe.
  void message(const Action& made_by, int from, int to, double bytes,
               Time start, Time end);

  // Records a sum of gradients over replicas, by the clock of the host. `rank`:
  // as for action_starts(). Not called while others record.
  void gradient_sum(std::size_t rank, double bytes, Time start, Time end);

  // Waits for all devices and returns the times. Copies of tensors that no rank
  // made, such as the mini-batch, are left out.
  Timeline timeline() const;

 private:
  struct Record {
    Action action;
    Stamp start, end;
    std::optional<double> bytes_before, bytes_after;
  };
  struct Message {
    Transfer transfer;  // its times are not set
    Time start, end;
  };
  std::optional<double> bytes_on(std::size_t rank) const;
  // Returns the seconds from begin() to `stamp`; nullopt for a device that no
  // rank has.
  std::optional<double> seconds(const Stamp& stamp,
                                const c10::Device& device) const;
  // Returns the seconds from begin() to `time`; 0 if it is before.
  double since_begin(Time time) const;
  std::vector<Transfer> transfers() const;
  std::vector<std::vector<HostCopy>> host_copies() const;
  std::vector<MemoryPoint> memory_of(std::size_t rank,
                                     const std::vector<Span>& spans) const;

  const std::vector<c10::Device> devices_;
  const MemoryReader memory_;
  Time host_begin_;
  std::vector<Stamp> begin_;                        // by rank
  std::vector<std::optional<double>> first_bytes_;  // by rank
  std::vector<std::vector<Record>> records_;        // by rank
  std::vector<CopyLog> copies_;                     // by rank
  std::mutex mutex_;
  std::vector<Message> messages_;
  std::vector<std::vector<GradientSum>> gradient_sums_;  // by rank
};

}  // namespace gpipe::internal
