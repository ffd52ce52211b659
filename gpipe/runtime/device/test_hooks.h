// Hooks of tests: a test can make each place of a run fail (fault points), and
// leave out each ordering of work on different streams. Null except in tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace gpipe::internal {

// A function that is called at every fault point, inside the scope of its
// action. It throws the exception that a test wants there. Threads: called by
// all threads that run a pipeline.
//
// `site`: what is about to be done, such as "copy-in". `partition`,
// `microbatch`: the cell; -1 for all of them.
using FaultHook = void (*)(const char* site, int64_t partition,
                           int64_t microbatch);

namespace detail {
inline std::atomic<FaultHook> fault_hook{nullptr};
}
inline void set_fault_hook(FaultHook hook) { detail::fault_hook = hook; }

// Calls the fault hook, if there is one.
//
// Cost: one relaxed load and a branch that is never taken, about ten times per
// cell and once per gradient of a parameter. Each is next to at least one
// LibTorch operator, which takes a hundred times as long. A second build of the
// runtime for tests would save this, but every test run would have to compile
// it, and the tests would not test what users get.
inline void fault_point(const char* site, int64_t partition = -1,
                        int64_t microbatch = -1) {
  const FaultHook hook = detail::fault_hook.load(std::memory_order_relaxed);
  if (hook != nullptr) hook(site, partition, microbatch);
}

// The ways of ordering work on streams.
enum class Ordering { kEvent, kWait, kRecord, kScope };

// A line of source code. As a default argument, here() gives the caller's line.
struct Site {
  const char* file;
  int line;

  static constexpr Site here(const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
    return {file, line};
  }
};

// Returns a text such as "wait at gpipe/runtime/device/copier.cc:21".
inline std::string to_string(Ordering ordering, const Site& site) {
  constexpr const char* kNames[] = {"event", "wait", "record", "scope"};
  return std::string(kNames[static_cast<int>(ordering)]) + " at " + site.file +
         ":" + std::to_string(site.line);
}

// A function that every ordering calls before it is made. If it returns true,
// the ordering is left out. Threads: called by all
// threads that run a pipeline.
using LeaveOut = bool (*)(Ordering, const Site&);

namespace detail {
inline std::atomic<LeaveOut> leave_out{nullptr};
}
inline void set_leave_out(LeaveOut leave_out) { detail::leave_out = leave_out; }

// Returns whether a test leaves out the ordering at `site`.
inline bool left_out(Ordering ordering, const Site& site) {
  const LeaveOut ask = detail::leave_out.load(std::memory_order_relaxed);
  return ask != nullptr && ask(ordering, site);
}

}  // namespace gpipe::internal
