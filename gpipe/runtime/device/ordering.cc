#include "gpipe/runtime/device/ordering.h"

namespace gpipe::internal {

namespace detail {
std::atomic<LeaveOut> leave_out{nullptr};
}

std::string to_string(Ordering ordering, const Site& site) {
  constexpr const char* kNames[] = {"event", "wait", "record", "scope"};
  return std::string(kNames[static_cast<int>(ordering)]) + " at " + site.file +
         ":" + std::to_string(site.line);
}

void set_leave_out(LeaveOut leave_out) { detail::leave_out = leave_out; }

}  // namespace gpipe::internal
