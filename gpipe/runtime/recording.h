// When a run of a schedule did what.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <vector>

#include "gpipe/runtime/copy_log.h"
#include "gpipe/runtime/device_memory.h"
#include "gpipe/runtime/stamp.h"
#include "gpipe/schedule/schedule.h"
#include "gpipe/simulation/timeline.h"

namespace gpipe {

// Threads: each rank's entries belong to its worker while a schedule runs.
class Recording {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `devices`: of the ranks. `memory`: what they hold; not asked if empty.
  Recording(std::vector<c10::Device> devices, MemoryReader memory);

  // All ranks begin. On the caller's thread; waits until the current streams
  // have done what they were given, so that times of different devices count
  // from the same moment.
  void begin();
  // Around each action of a rank, on its worker.
  void action_starts(std::size_t rank, const Action& action);
  void action_ends(std::size_t rank);
  // What the rank's worker fetches from other devices.
  CopyLog& copies(std::size_t rank) { return copies_[rank]; }
  // What goes over a Border, by the clock of the host. `from`, `to`: ranks.
  // Threads: any.
  void message(const Action& made_by, int from, int to, double bytes,
               Time start, Time end);

  // Waits until all has been done. Copies of what no rank made, as the
  // mini-batch is, are not in it.
  Timeline timeline() const;

 private:
  struct Record {
    Action action;
    Stamp start, end;
    std::optional<double> bytes_before, bytes_after;
  };
  struct Message {
    Transfer transfer;  // without its times
    Time start, end;
  };
  std::optional<double> bytes_on(std::size_t rank) const;
  // From the beginning; none for a device that no rank has.
  std::optional<double> seconds(const Stamp& stamp,
                                const c10::Device& device) const;
  std::vector<Transfer> transfers() const;
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
};

}  // namespace gpipe
