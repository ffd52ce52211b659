// Threads of gpipe that may still run when the process exits, and a gate that
// stops their work then. No LibTorch.
#pragma once

#include <atomic>
#include <thread>
#include <utility>

namespace gpipe::internal {

// The count of one background thread, from before it starts until its
// thread-local objects are destroyed.
class BackgroundCount {
 public:
  BackgroundCount();
  ~BackgroundCount();
  BackgroundCount(BackgroundCount&& other) noexcept
      : counts_(std::exchange(other.counts_, false)) {}
  BackgroundCount& operator=(BackgroundCount&&) = delete;

  // Counts until the end of the calling thread. Call it first on that thread.
  void end_with_thread();

 private:
  bool counts_ = true;
};

// Ends the process with this status, without the remaining handlers and
// destructors of exit(). Flushes the standard streams and C's files.
[[noreturn]] void end_process(int status);

// Starts a thread that runs `run`. All threads of gpipe start here, since any
// of them may still run when the process exits: std::exit() destroys neither
// objects on stacks nor leaked ones. LibTorch destroys its operators then, and
// a thread that uses one later would abort the process.
//
// If such threads run when all static objects of the image (program or shared
// library) that contains gpipe are destroyed, the process ends with the status
// given to exit(), and LibTorch's destructors do not run. Nothing waits for the
// threads. Static objects may use them and join them before.
//
// Throws std::system_error if the thread cannot start. Thread-safe.
template <typename Run>
std::thread background_thread(Run run) {
  return std::thread(
      [count = BackgroundCount(), run = std::move(run)]() mutable {
        count.end_with_thread();
        run();
      });
}

// ---- A gate that stops the work of threads when the process exits.

// A piece of work that runs LibTorch's operators, of a background thread or of
// a caller of gpipe. After another thread has called exit(), the constructor
// blocks until let_pass_at_exit(), which for most work means forever. Inside
// another WorkScope, it does nothing.
//
// exit() first destroys the static objects that LibTorch makes when an operator
// first needs them. An operator that runs at the same time would fail, or crash
// the process, before the handler of background_thread() ends it. So exit()
// closes the gate and waits until no work runs. Work that does not end within a
// second ends the process with the status of exit(), without any more
// destructors.
class WorkScope {
 public:
  // `passes`: if it is true, the work runs although the gate is closed. Must
  // outlive the object.
  explicit WorkScope(const std::atomic<bool>& passes);
  WorkScope();
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  const bool is_outer_;
};

// A wait for other threads or processes inside a WorkScope. While in scope, no
// work runs on this thread, and the destructor may block as a WorkScope's
// constructor does. Does nothing outside of a WorkScope.
class WaitScope {
 public:
  WaitScope();
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

 private:
  const std::atomic<bool>* const passes_;
};

// Ensures that exit() closes the gate before it destroys the static objects
// that exist now. Takes a few bytes per call until the process ends.
// Thread-safe.
void close_gate_at_exit();

// Lets work pass a closed gate, also work that blocks at it, if this thread has
// called exit(). Call it before this thread waits for that work: it may be
// destroying a static object, and nobody else would open the gate. `passes`:
// that of the work. Thread-safe.
void let_pass_at_exit(std::atomic<bool>& passes);

}  // namespace gpipe::internal
