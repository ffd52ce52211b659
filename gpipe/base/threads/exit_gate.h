// A gate that stops the work of threads when the process exits.
#pragma once

#include <atomic>

namespace gpipe::internal {

// A piece of work that runs LibTorch's operators, of a background thread or of
// a caller of gpipe. After another thread has called exit(), the constructor
// blocks until let_pass_at_exit(), which for most work means forever. Inside
// another WorkScope, it does nothing.
//
// exit() first destroys the static objects that LibTorch makes when an operator
// first needs them. An operator that runs at the same time would fail, or crash
// the process, before background_thread.h ends it. So exit() closes the gate
// and waits until no work runs. Work that does not end within a second ends the
// process with the status of exit(), without any more destructors.
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
