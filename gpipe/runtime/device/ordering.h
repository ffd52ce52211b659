// Switches for the places where the runtime orders work on different streams. A
// test can leave out each one, to check that a test fails without it.
#pragma once

#include <atomic>
#include <string>

namespace gpipe::internal {

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
std::string to_string(Ordering ordering, const Site& site);

// A function that every ordering calls before it is made. If it returns true,
// the ordering is left out. Null except in tests. Threads: called by all
// threads that run a pipeline.
using LeaveOut = bool (*)(Ordering, const Site&);
void set_leave_out(LeaveOut leave_out);

namespace detail {
extern std::atomic<LeaveOut> leave_out;
}

// Returns whether a test leaves out the ordering at `site`.
inline bool left_out(Ordering ordering, const Site& site) {
  const LeaveOut ask = detail::leave_out.load(std::memory_order_relaxed);
  return ask != nullptr && ask(ordering, site);
}

}  // namespace gpipe::internal
