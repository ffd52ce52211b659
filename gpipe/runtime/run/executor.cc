#include "gpipe/runtime/run/executor.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cfenv>
#include <chrono>
#include <exception>
#include <future>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "gpipe/base/threads.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/schedule.h"

namespace gpipe::internal {

Failure at_partition(int64_t partition, Phase phase) {
  return {partition, Failure::kAll, phase, "", ""};
}

Failure caught_at(Failure place) {
  try {
    throw;
  } catch (c10::Error& error) {
    place.what = error.what_without_backtrace();
    error.add_context("in " + place.place());
  } catch (const std::exception& error) {
    place.what = error.what();
  } catch (...) {
  }
  return place;
}

std::unique_ptr<Worker> new_worker(std::function<void()> prepare, int threads,
                                   int spins) {
  if (threads == 0) return std::make_unique<Worker>(std::move(prepare), spins);
  // LibTorch has one default for all threads, which must not be read while it
  // is the number of a worker.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  const int caller_threads = at::get_num_threads();
  auto prepared = std::make_shared<std::promise<int>>();
  auto worker = std::make_unique<Worker>(
      [prepare = std::move(prepare), prepared, threads] {
        prepare();
        // set_num_threads() must run before the thread's first operator, which
        // would start a team of threads on all cores. It must run after
        // LibTorch's own initialisation of the thread, which the first
        // get_num_threads() triggers and which would undo it.
        const int by_default = at::get_num_threads();
        at::set_num_threads(threads);
        prepared->set_value(by_default);
      },
      spins);
  const int by_default = prepared->get_future().get();
  // The call also changed the default for future threads; restore it. That sets
  // the number of the restoring thread, too, and the caller may be a worker.
  const auto restore = [by_default] { at::set_num_threads(by_default); };
  if (caller_threads == by_default) {
    restore();
  } else {
    try {
      background_thread(restore).join();
    } catch (const std::system_error&) {
      restore();  // the caller's own number is the lesser evil
      throw;
    }
  }
  return worker;
}

void RunAhead::wait() {
  while (under_way_.size() >= kActions) {
    under_way_.front()->synchronize();
    under_way_.pop_front();
  }
}

void RunAhead::end_action() {
  if (!has_streams(device_)) return;
  under_way_.push_back(record_event(device_, /*timed=*/false));
}

namespace {

// Tests of a condition before a thread sleeps: about 0.1 ms, which is what
// waking a thread takes on an otherwise idle machine.
constexpr int kSpins = 300;

// Returns whether this is a thread on which LibTorch's engine runs the backward
// of a device's operators: there is one for each device. The engine has no
// function that tells, but names its threads.
bool is_device_thread_of_autograd() {
  return c10::getThreadName().rfind("pt_autograd_", 0) == 0;
}

}  // namespace

// The next two are members of Executor::Run, which has external linkage.

// The run that this worker works for, while in scope. `outer`: the run of an
// outer pipeline whose layer started this run; null if the caller is no worker.
// The outer Work is on the stack of a worker that waits for this run.
class Work {
 public:
  Work(const Executor* executor, const Work* outer)
      : executor(executor), outer(outer) {
    innermost = this;
  }
  ~Work() { innermost = nullptr; }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  static thread_local const Work* innermost;

  const Executor* const executor;
  const Work* const outer;
};
thread_local const Work* Work::innermost = nullptr;

// Keeps warnings of several threads for the handler of another one.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    warnings_.push_back(warning);
  }
  // Passes them on to the handler of this thread, which may throw.
  void replay() const {
    for (const c10::Warning& each : warnings_) c10::warn(each);
  }

 private:
  std::mutex mutex_;
  std::vector<c10::Warning> warnings_;
};

// The state of one run, shared by the workers.
struct Executor::Run {
  Run(const Schedule& schedule, int first_rank, Actor& actor,
      Recording* recording, std::vector<Notifier>& notifiers)
      : schedule(schedule),
        first_rank(first_rank),
        rank_of_stage(gpipe::rank_of_stage(schedule)),
        actor(actor),
        recording(recording),
        notifiers(notifiers) {
    std::fegetenv(&floating_point);
  }

  const std::vector<Action>& actions(int rank) const {
    return schedule.ranks[first_rank + rank];
  }

  const Schedule& schedule;
  const int first_rank;
  const std::vector<int> rank_of_stage;
  Actor& actor;
  Recording* const recording;        // may be null
  std::vector<Notifier>& notifiers;  // by rank
  const at::ThreadLocalState caller;
  std::fenv_t floating_point;  // of the caller: rounding, denormal numbers
  // The handler of the caller's warnings need not be thread-safe.
  c10::WarningHandler* const handler = c10::WarningUtils::get_warning_handler();
  Warnings warnings;
  const Work* const outer = Work::innermost;  // of the caller's thread
  std::vector<Event> begin;  // of the caller's streams, by rank
  std::vector<Event> end;    // of the workers' streams, by rank
  std::vector<char> thrown;  // whether an action has thrown, by rank

  // The positions of the actions, see clock_order(). Made by the first fail(),
  // or by take_turns().
  std::vector<std::vector<int64_t>> positions;
  int64_t position(int rank, std::size_t k) const {
    return positions[first_rank + rank][k];
  }

  // With one_at_a_time: position and rank of each action in order, and the
  // index of the action whose turn it is.
  std::vector<std::pair<int64_t, int>> turns;
  std::atomic<std::size_t> turn{0};

  void take_turns() {
    positions = clock_order(schedule);
    for (int r = 0; r < static_cast<int>(notifiers.size()); ++r) {
      for (const int64_t position : positions[first_rank + r]) {
        turns.emplace_back(position, r);
      }
    }
    std::ranges::sort(turns);
  }
  bool has_turn(int rank, std::size_t k) const {
    return turns.empty() || turns[turn].first == position(rank, k);
  }
  void end_turn() {
    if (turn + 1 >= turns.size()) return;
    notifiers[turns[++turn].second].notify();
  }

  // Position of the first failed action so far; kNone while there is none.
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> failed{kNone};
  std::mutex mutex;
  std::exception_ptr exception;    // of the action at `failed`
  std::optional<Failure> failure;  // its place

  void fail(int rank, std::size_t k, std::exception_ptr error, Failure place) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (positions.empty()) positions = clock_order(schedule);
      if (position(rank, k) >= failed) return;
      exception = std::move(error);
      failure = std::move(place);
      failed = position(rank, k);
    }
    for (Notifier& notifier : notifiers) notifier.notify();
  }

  // Returns whether an action before action `k` of the rank has failed.
  bool is_cancelled(int rank, std::size_t k) const {
    const int64_t first = failed;
    return first != kNone && first < position(rank, k);
  }

  // Wakes the rank that may wait for the output of `action`.
  void tell(const Action& action) {
    if (action.kind == ActionKind::kRecompute ||
        action.kind == ActionKind::kBackwardWeight ||
        !is_compute(action.kind)) {
      return;
    }
    const int stage = action.kind == ActionKind::kForward ? action.stage + 1
                                                          : action.stage - 1;
    if (stage < 0 || stage >= static_cast<int>(rank_of_stage.size())) {
      return;
    }
    const int rank = rank_of_stage[stage] - first_rank;
    const bool is_here = 0 <= rank && rank < static_cast<int>(notifiers.size());
    if (is_here) notifiers[rank].notify();
  }

  // Runs `part` of action `k` of a rank. If it throws, stores the error and
  // returns false. Errors before the first action and after the last one count
  // as failures of that action.
  template <typename Part>
  bool attempt(int rank, std::size_t k, Part part) {
    try {
      part();
      return true;
    } catch (...) {
      thrown[rank] = true;
      fail(rank, k, std::current_exception(),
           caught_at(actor.place(actions(rank)[k])));
      return false;
    }
  }
};

Executor::Executor(std::vector<c10::Device> devices, int threads,
                   bool one_at_a_time, int other_workers, int first_rank)
    : devices_(std::move(devices)),
      threads_(threads),
      one_at_a_time_(one_at_a_time),
      first_rank_(first_rank),
      notifiers_(devices_.size()) {
  // Spinning before sleeping only helps if there is a core to spin on.
  const auto cores = std::thread::hardware_concurrency();
  const auto workers = devices_.size() + other_workers;
  worker_spins_ = workers <= cores ? kSpins : 0;
  caller_spins_ = workers < cores ? kSpins : 0;

  close_gate_at_exit();
  for (const c10::Device& device : devices_) {
    streams_.emplace_back(device);
    workers_.push_back(new_worker(workers_.size()));
  }
}

std::unique_ptr<Worker> Executor::new_worker(std::size_t rank) const {
  return gpipe::internal::new_worker(
      [rank] {
        // The name that debuggers and `top -H` show.
        c10::setThreadName("gpipe " + std::to_string(rank));
        // LibTorch keeps autocast's cast copy of a weight for all threads,
        // until the user's autocast scope ends. A copy made in a recompute,
        // after that scope, would be found by the next step, and two workers
        // would share its graph. Cells share casts in another way, see
        // ParameterCasts.
        at::autocast::set_autocast_cache_enabled(false);
      },
      devices_[rank].is_cpu() ? threads_ : 0, worker_spins_);
}

bool StepMutex::lock(bool with_backward, bool waits_for_backward) {
  if (waits_for_backward) {
    mutex_.lock();
  } else {
    while (!mutex_.try_lock()) {
      if (with_backward_) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  with_backward_ = with_backward;
  return true;
}

void StepMutex::unlock() {
  with_backward_ = false;
  mutex_.unlock();
}

std::unique_lock<StepMutex> Executor::enter(bool with_backward) {
  TORCH_CHECK(!origin_.forked(),
              "a pipeline cannot be used in a fork of the process that made "
              "it: its workers are threads, which fork() does not copy, nor "
              "those of LibTorch; start a program (exec, posix_spawn) "
              "instead of fork() alone");
  for (const Work* work = Work::innermost; work; work = work->outer) {
    TORCH_CHECK(work->executor != this,
                "a layer or the loss calls the pipeline that it is part of, "
                "which would be a deadlock; call it between steps, or make a "
                "second pipeline of a clone() of the layers to be called");
  }
  const bool backwards_need_thread =
      std::ranges::any_of(devices_, has_streams) &&
      is_device_thread_of_autograd();
  TORCH_CHECK(
      !(backwards_need_thread && with_backward) &&
          running_.lock(with_backward, !backwards_need_thread),
      "a pipeline on accelerators is called within a backward, as by a hook of "
      "a parameter or by a function that is recomputed, for a backward of the "
      "pipeline or while one runs, which would be a deadlock: that backward "
      "needs the thread that the call occupies; call the pipeline after the "
      "outer backward");
  return std::unique_lock<StepMutex>(running_, std::adopt_lock);
}

void Executor::set_failure(std::optional<Failure> failure) {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  failure_ = std::move(failure);
}

std::optional<Failure> Executor::last_failure() const {
  std::lock_guard<std::mutex> lock(failure_mutex_);
  return failure_;
}

void Executor::run(const Schedule& schedule, Actor& actor,
                   Recording* recording) {
  std::exception_ptr exception;
  {
    Run run(schedule, first_rank_, actor, recording, notifiers_);
    execute(run);
    set_failure(std::move(run.failure));
    exception = std::move(run.exception);
    try {
      run.warnings.replay();
    } catch (...) {
      if (!exception) throw;
    }
  }
  if (exception) std::rethrow_exception(exception);
}

void Executor::execute(Run& run) {
  if (one_at_a_time_) run.take_turns();
  run.begin.resize(devices_.size());
  run.end.resize(devices_.size());
  run.thrown.resize(devices_.size());
  const auto actions = [&](std::size_t r) {
    return run.actions(static_cast<int>(r)).size();
  };
  auto done = std::make_shared<Countdown>(devices_.size());
  if (run.recording) run.recording->begin();
  for (std::size_t r = 0; r < devices_.size(); ++r) {
    if (actions(r) == 0) continue;
    const bool taken = run.attempt(static_cast<int>(r), 0, [&] {
      run.begin[r] = Event::record(devices_[r]);
    });
    if (!taken) return;
  }
  // Workers use `run` until they have counted: nothing may end this function
  // before, neither an error of post() nor pthread_cancel().
  int cancel_state = 0;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
  for (std::size_t r = 0; r < devices_.size(); ++r) {
    const bool works =
        actions(r) > 0 && run.attempt(static_cast<int>(r), 0, [&] {
          workers_[r]->post([this, &run, done, r] {
            work(run, static_cast<int>(r));
            done->count();  // `run` may be destroyed after this
          });
        });
    if (!works) done->count();
  }
  done->wait(caller_spins_);
  ::pthread_setcancelstate(cancel_state, nullptr);
  // LibTorch makes static objects as operators are first used, mostly in the
  // first steps.
  static std::atomic<uint64_t> runs{0};
  if (std::has_single_bit(++runs)) close_gate_at_exit();
  // Note [A thread after an exception]
  // LibTorch's engine keeps, for each thread that has called it, the work that
  // is still to be done there. If a backward fails, this work is never done,
  // and only gpipe's engine drops it (saved_tensors.h). The gradients and the
  // graph that it holds would stay until the thread ends. Also, if the
  // exception is not a std::exception, neither engine notices that the call has
  // ended. After 60 such calls on a thread,
  // the engine would run the next call on a thread of its own, where no code
  // catches exceptions. So after an exception the worker thread is replaced.
  for (std::size_t r = 0; r < devices_.size(); ++r) {
    if (!run.thrown[r]) continue;
    try {
      workers_[r] = new_worker(r);
    } catch (const std::system_error&) {
      // No thread can start. The old one stays, with what the engine keeps.
    }
  }
  for (std::size_t r = 0; r < devices_.size(); ++r) {
    if (actions(r) == 0) continue;
    run.attempt(static_cast<int>(r), actions(r) - 1,
                [&] { run.end[r].wait(devices_[r]); });
  }
  if (!run.exception) return;
  // The failed action may be the one that orders the streams. After this wait
  // all work is done, and the memory of the step can be freed in any order.
  for (const auto& stream : streams_) {
    try {
      if (stream.get()) stream.get()->synchronize();
    } catch (...) {
      // The stream may report the same failure again. The first error is
      // rethrown.
    }
  }
}

void Executor::work(Run& run, int rank) {
  const Work this_work(this, run.outer);
  const auto& actions = run.actions(rank);
  // Made within the first attempt, since they may throw.
  std::optional<at::ThreadLocalStateGuard> caller;
  std::optional<c10::WarningUtils::WarningHandlerGuard> handler;
  c10::OptionalDeviceGuard device;
  std::optional<StreamScope> stream;
  const bool begun = run.attempt(rank, 0, [&] {
    caller.emplace(run.caller);
    const bool same_handler =
        run.handler == c10::WarningUtils::get_warning_handler();
    handler.emplace(same_handler ? run.handler : &run.warnings);
    std::fesetenv(&run.floating_point);
    // StreamScope also sets the device. Among devices without streams, the meta
    // device may have an index.
    if (!streams_[rank].get() && devices_[rank].has_index()) {
      device.reset_device(devices_[rank]);
    }
    stream.emplace(streams_[rank].get(), Site::here());
    run.begin[rank].wait(devices_[rank]);
  });
  if (!begun) return;
  RunAhead ahead(devices_[rank]);
  std::size_t computed = 0;  // number of actions before, without O and L
  for (std::size_t k = 0; k < actions.size(); ++k) {
    const Action& action = actions[k];
    const bool computes = is_compute(action.kind);
    const auto cancelled = [&] { return run.is_cancelled(rank, k); };
    const auto ready = [&] {
      return run.has_turn(rank, k) && run.actor.ready(action) &&
             (!action.fused_with_next || run.actor.ready(actions[k + 1]));
    };
    const bool waited = run.attempt(rank, k, [&] {
      notifiers_[rank].wait([&] { return cancelled() || ready(); },
                            worker_spins_);
    });
    if (!waited || cancelled()) break;
    CopyLog* const log = run.recording ? &run.recording->copies(rank) : nullptr;
    if (log) log->place = computed;
    run.attempt(rank, k, [&] {
      ahead.wait();
      run.actor.fetch(action, log);
      if (run.recording && computes) {
        run.recording->action_starts(rank, action);
      }
      at::RecordFunction range(at::RecordScope::USER_SCOPE);
      if (range.isActive()) range.before("gpipe " + to_string(action));
      run.actor.perform(action);
      if (run.recording && computes) run.recording->action_ends(rank);
      if (computes) ahead.end_action();
    });
    computed += computes;
    run.tell(action);
    run.end_turn();
  }
  run.attempt(rank, actions.size() - 1,
              [&] { run.end[rank] = Event::record(devices_[rank]); });
}

}  // namespace gpipe::internal
