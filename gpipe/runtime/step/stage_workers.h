// The stages of this process, with the workers that run them.
#pragma once

#include <c10/core/Device.h>

#include <mutex>
#include <optional>
#include <vector>

#include "gpipe/failure.h"
#include "gpipe/runtime/cell/microbatch.h"
#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/run/caught.h"
#include "gpipe/runtime/run/executor.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/step/step.h"

namespace gpipe::internal {

// The stages, the workers, the lock of the running mini-batch, and the failure
// of the last pass.
// Threads: any, unless a function says otherwise.
class StageWorkers {
 public:
  // `unsplit`: elements of the input that every micro-batch gets whole.
  // `rank_of_stage`: see Stages.
  // `devices` and what follows: see Executor.
  StageWorkers(std::vector<Partition> partitions, Unsplit unsplit,
               std::vector<int> rank_of_stage, std::vector<c10::Device> devices,
               int threads, bool one_at_a_time, int other_workers = 0);

  // The caller holds the lock of enter().
  Stages& stages() { return stages_; }
  const Stages& stages() const { return stages_; }
  Executor& executor() { return executor_; }
  const Executor& executor() const { return executor_; }

  // Blocks until no other mini-batch runs, and returns the lock. Throws
  // c10::Error if that would deadlock (see Executor::check_caller()).
  std::unique_lock<std::mutex> enter();
  // Runs a plan on the workers. Sets or clears the failure, and rethrows. The
  // caller holds the lock of enter().
  void run(const Plan& plan, Actor& actor, Recording* recording = nullptr);
  // Runs `part`, which is work before or after the schedule. If it throws, sets
  // the failure to `place` and rethrows.
  template <typename Part>
  auto outside_schedule(const Failure& place, Part part);

  void set_failure(std::optional<Failure> failure);
  // Returns the failure of the last pass; nullopt if it succeeded.
  std::optional<Failure> last_failure() const;

 private:
  std::mutex running_;
  Stages stages_;
  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  Executor executor_;  // last: its workers end before other members
};

template <typename Part>
auto StageWorkers::outside_schedule(const Failure& place, Part part) {
  try {
    return part();
  } catch (...) {
    set_failure(caught_at(place));
    throw;
  }
}

}  // namespace gpipe::internal
