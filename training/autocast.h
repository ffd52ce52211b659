// Mixed precision in a scope; LibTorch's C++ has only the switches.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace gpipe {

// While in scope, operators on this type of device compute in `dtype` where
// torch.autocast in Python has them do so (bfloat16 and float16 on a CPU, too).
// A GPipe's workers take the caller's state over, in forward, recompute and
// train_step(), and leave it again:
//
//   {
//     const gpipe::AutocastScope autocast(torch::kCUDA, torch::kBFloat16);
//     result = pipeline->train_step(input, target, loss, schedule);
//   }
//
// They keep no copies of weights in `dtype` from one operator to the next, as
// LibTorch does for other threads until the outermost scope ends: a recompute
// may come after that.
//
// Scopes may be nested; the state before comes back at the end of each.
// Threads: the calling one.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, at::ScalarType dtype,
                bool enabled = true)
      : device_(device),
        enabled_before_(at::autocast::is_autocast_enabled(device)),
        dtype_before_(at::autocast::get_autocast_dtype(device)) {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    // Copies of weights in `dtype` are kept up to the end of the outermost one.
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_before_);
    at::autocast::set_autocast_dtype(device_, dtype_before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  const c10::DeviceType device_;
  const bool enabled_before_;
  const at::ScalarType dtype_before_;
};

}  // namespace gpipe
