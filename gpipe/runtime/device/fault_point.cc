#include "gpipe/runtime/device/fault_point.h"

namespace gpipe::internal {

namespace detail {
std::atomic<FaultHook> fault_hook{nullptr};
}

void set_fault_hook(FaultHook hook) { detail::fault_hook = hook; }

}  // namespace gpipe::internal
