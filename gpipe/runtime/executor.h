// Executes a schedule on worker threads, one per rank.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "gpipe/runtime/bell.h"
#include "gpipe/runtime/copy_log.h"
#include "gpipe/runtime/failure.h"
#include "gpipe/runtime/origin.h"
#include "gpipe/runtime/recording.h"
#include "gpipe/runtime/worker.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe {

// A schedule with what the executor derives from it once.
struct Plan {
  // std::invalid_argument if the schedule cannot be executed.
  explicit Plan(Schedule schedule);

  // The part of one rank, for an executor that has that rank only, as its 0.
  Plan of_rank(int rank) const;

  Schedule schedule;
  std::vector<std::vector<int64_t>> positions;  // see clock_order()
  std::vector<int> rank_of_stage;               // -1: none of these ranks

 private:
  Plan() = default;
};

// What the actions of a plan do. Threads: each function is called by the
// worker of the action's rank.
class Actor {
 public:
  virtual ~Actor() = default;
  // Whether all that the action needs from other ranks has arrived. Also
  // called while other workers deliver. Throws if it never will.
  virtual bool ready(const Action& action) = 0;
  // Brings it to the rank's device, before perform(), and notes the copies in
  // `log`, if there is one. May throw.
  virtual void fetch(const Action& /*action*/, CopyLog* /*log*/) {}
  // May throw.
  virtual void perform(const Action& action) = 0;
  // Where in `action` an exception came from; called right after it was
  // thrown. `what` is not filled in.
  virtual Failure place(const Action& action) = 0;
};

struct ExecutorError {
  std::exception_ptr exception;
  Failure failure;
};

class Executor {
 public:
  // One worker per device given, that is per rank (devices may repeat), living
  // as long as the executor. `threads`: intra-op threads of a worker of a CPU
  // rank. `one_at_a_time`: no two actions run at the same time; their order is
  // the schedule's (clock_order()).
  Executor(std::vector<c10::Device> devices, int threads, bool one_at_a_time);

  // Runs all actions; returns when every worker is done. The calling thread's
  // state (grad mode, autocast, ...) holds on the workers. What the caller's
  // current streams have been given happens before, and what they are given
  // afterwards happens after.
  //
  // If actions throw: the error of the first in schedule order, whatever the
  // timing. Actions before it in that order are performed, no later one is
  // started.
  // `recording`: gets the time of every action. LibTorch's profilers see each
  // as a range of the user's, "gpipe 1F0".
  // Threads: one run at a time.
  std::optional<ExecutorError> run(const Plan& plan, Actor& actor,
                                   Recording* recording = nullptr);

  // Has the worker look again whether its action is ready. For what does not
  // come from another worker. Threads: any, at any time.
  void ring(int rank) { bells_[rank].ring(); }

  // Before a lock is taken for run(): c10::Error if that would wait for ever,
  // on a worker of this executor or of one that a layer of a run of this one
  // has called, or in a fork of the process that made it, where the workers are
  // not.
  void check_caller() const;

  const std::vector<c10::Device>& devices() const { return devices_; }

 private:
  struct Run;
  void work(Run& run, int rank);
  std::unique_ptr<Worker> new_worker(std::size_t rank) const;

  const Origin origin_;
  std::vector<c10::Device> devices_;
  std::vector<std::optional<c10::Stream>> streams_;
  const int threads_;
  const bool one_at_a_time_;
  int worker_spins_, caller_spins_;
  std::vector<Bell> bells_;                       // by rank
  std::vector<std::unique_ptr<Worker>> workers_;  // last: they end first
};

}  // namespace gpipe
