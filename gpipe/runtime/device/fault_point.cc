#include "gpipe/runtime/device/fault_point.h"

namespace gpipe {

namespace internal {
std::atomic<FaultHook> fault_hook{nullptr};
}

void set_fault_hook(FaultHook hook) { internal::fault_hook = hook; }

}  // namespace gpipe
