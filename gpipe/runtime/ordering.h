// The places where the runtime orders the work of different streams, as
// switches for tests: each can be left out, to see that a test notices.
#pragma once

#include <atomic>
#include <string>

namespace gpipe {

enum class Ordering { kEvent, kWait, kRecord, kScope };

// A line of the source. As a default argument: the caller's.
struct Site {
  const char* file;
  int line;

  static constexpr Site here(const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
    return {file, line};
  }
};

// "wait at gpipe/runtime/transport.cc:21"
std::string to_string(Ordering ordering, const Site& site);

// Asked by every ordering before it is made; true leaves it out. Null but in
// tests. Threads: called by all that run a pipeline.
using LeaveOut = bool (*)(Ordering, const Site&);
void set_leave_out(LeaveOut leave_out);

namespace internal {
extern std::atomic<LeaveOut> leave_out;
}

inline bool left_out(Ordering ordering, const Site& site) {
  const LeaveOut ask = internal::leave_out.load(std::memory_order_relaxed);
  return ask != nullptr && ask(ordering, site);
}

}  // namespace gpipe
