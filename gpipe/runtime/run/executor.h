// Executes a schedule on worker threads, one per rank.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gpipe/failure.h"
#include "gpipe/runtime/device/copier.h"
#include "gpipe/runtime/device/origin.h"
#include "gpipe/runtime/device/stream.h"
#include "gpipe/runtime/run/recording.h"
#include "gpipe/runtime/run/worker.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

// Returns the place of work on a whole mini-batch, which belongs to no cell.
Failure at_partition(int64_t partition, Phase phase);

// Returns `place` with the text of the exception that is being handled. If that
// is a c10::Error, adds the place to its text. Call inside a catch block.
Failure caught_at(Failure place);

// Returns a new worker. `prepare` runs first on the new thread. `threads`:
// number of intra-op threads of its CPU operators; 0: LibTorch's default.
// `spins`: see Worker. The number of intra-op threads of the calling thread and
// of other threads is unchanged.
std::unique_ptr<Worker> new_worker(std::function<void()> prepare, int threads,
                                   int spins = 0);

// The actions of a rank that its host has issued and its device has not done.
//
// A copy from another device lies in memory of the copy stream. After its last
// use a caching allocator gives the memory to the next copy only once the
// device has come there. A host without bound would issue all copies of a step
// meanwhile, each into new memory: 1F1B would hold the inputs of all
// micro-batches instead of those in flight.
//
// Threads: used by the rank's worker only.
class RunAhead {
 public:
  // The device computes one action while the host issues the next one. The
  // second action is there so that the device need not wait for a host that
  // wakes up late.
  static constexpr std::size_t kActions = 2;

  explicit RunAhead(c10::Device device) : device_(device) {}

  // Blocks the host until the device has fewer than kActions actions to do.
  // Returns at once if the device has no streams. Throws c10::Error if the
  // device has failed.
  void wait();

  // Notes the end of an action, on the current stream of this thread. Throws
  // c10::Error if the device has failed.
  void end_action();

 private:
  const c10::Device device_;
  std::deque<std::shared_ptr<c10::Event>> under_way_;  // the end of each action
};

// Performs the actions of a schedule. Threads: each function is called by the
// worker of the action's rank.
class Actor {
 public:
  virtual ~Actor() = default;
  // Returns whether all that the action needs from other ranks has arrived.
  // Also called while other workers deliver. Throws if it can never arrive.
  virtual bool ready(const Action& action) = 0;
  // Brings the inputs of the action to the rank's device. Called before
  // perform(). Adds the copies to `log`, which may be null. May throw.
  virtual void fetch(const Action& /*action*/, CopyLog* /*log*/) {}
  // Performs the action. May throw.
  virtual void perform(const Action& action) = 0;
  // Returns where in `action` an exception was thrown, without `what`. Called
  // right after the exception.
  virtual Failure place(const Action& action) = 0;
};

// The lock of an executor, which also tells whether its holder runs backwards.
class StepMutex {
 public:
  // Blocks until no other thread has the lock, and takes it. `with_backward`:
  // whether the holder runs backwards. `waits_for_backward`: if it is false,
  // returns false, without the lock, as soon as a holder runs backwards.
  bool lock(bool with_backward, bool waits_for_backward);
  void unlock();

 private:
  std::mutex mutex_;
  std::atomic<bool> with_backward_{false};  // of the holder
};

// Runs schedules on its own worker threads, one after the other, and keeps the
// failure of the last one.
// Threads: any, unless a function says otherwise.
class Executor {
 public:
  // Starts one worker per element of `devices`, that is, one per rank. Devices
  // may repeat. The workers live as long as the executor. `threads`: intra-op
  // threads of the worker of a CPU rank. `one_at_a_time`: only one worker runs
  // at any time, in schedule order (clock_order()). `other_workers`: how many
  // workers of other processes may compute on the same cores. `first_rank`: the
  // rank of schedules that is the first one here; later ones follow.
  Executor(std::vector<c10::Device> devices, int threads, bool one_at_a_time,
           int other_workers = 0, int first_rank = 0);

  // Blocks until no other thread has the lock of the executor, and returns the
  // lock. `with_backward`: whether the caller's run has backwards. Throws
  // c10::Error if run() would deadlock on this thread:
  // - on a worker of this executor, or of a pipeline that a layer of this
  //   executor's run has called;
  // - if there are accelerators, on a thread of the autograd engine for a
  //   device, which backwards need: if this run or that of the lock's holder
  //   has any;
  // - in a forked process, which has no workers.
  std::unique_lock<StepMutex> enter(bool with_backward = false);

  // Runs all actions that `schedule` has for the ranks of this executor, and
  // returns when every worker is done. The schedule must be valid, see
  // validate(). The thread-local state of the caller (grad mode, autocast, ...)
  // and its floating-point environment apply on the workers. The caller's
  // handler gets their warnings at the end, on the caller's thread. Work that
  // is already on the caller's current streams runs before, and work that is
  // added later runs after.
  //
  // If actions throw, sets the failure and rethrows the exception of the first
  // one in schedule order, independent of timing. Actions before it in this
  // order are performed. No later action is started. If no action throws,
  // clears the failure.
  //
  // `recording`: receives the time of every action, and of the copies of O and
  // L; may be null. LibTorch's profilers show each action as a user range, such
  // as "gpipe 1F0".
  // Threads: the caller holds the lock of enter().
  void run(const Schedule& schedule, Actor& actor,
           Recording* recording = nullptr);

  // Runs `part`, which is work before or after the schedule. If it throws, sets
  // the failure to `place` and rethrows.
  template <typename Part>
  auto outside_schedule(const Failure& place, Part part);

  void set_failure(std::optional<Failure> failure);
  // Returns the failure of the last run; nullopt if it succeeded.
  std::optional<Failure> last_failure() const;

  // Wakes the worker of `rank` to check again whether its next action is ready.
  // Call this when input arrives from another process.
  void notify(int rank) { notifiers_[rank].notify(); }

  const std::vector<c10::Device>& devices() const { return devices_; }

 private:
  struct Run;
  void execute(Run& run);
  void work(Run& run, int rank);
  std::unique_ptr<Worker> new_worker(std::size_t rank) const;

  const Origin origin_;
  std::vector<c10::Device> devices_;
  std::vector<OwnedStream> streams_;  // by rank
  const int threads_;
  const bool one_at_a_time_;
  const int first_rank_;
  int worker_spins_, caller_spins_;
  StepMutex running_;
  mutable std::mutex failure_mutex_;
  std::optional<Failure> failure_;
  std::vector<Notifier> notifiers_;               // by rank
  std::vector<std::unique_ptr<Worker>> workers_;  // last: must end first
};

template <typename Part>
auto Executor::outside_schedule(const Failure& place, Part part) {
  try {
    return part();
  } catch (...) {
    set_failure(caught_at(place));
    throw;
  }
}

}  // namespace gpipe::internal
