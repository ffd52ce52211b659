// Mixed precision in a scope. LibTorch's C++ API has only the switches.
#pragma once

#include <ATen/autocast_mode.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace gpipe {

// Turns autocast on (or off, if `enabled` is false) from construction to
// destruction. Operators on `device` then compute in `dtype` wherever
// torch.autocast in Python does so: in bfloat16 or float16.
//
// A GPipe's workers use the autocast state of the thread that calls the
// pipeline, in forward, recompute and train_step(), and reset it afterwards:
//
//   {
//     const gpipe::AutocastScope autocast(torch::kCUDA, torch::kBFloat16);
//     result = pipeline->train_step(input, target, loss, schedule);
//   }
//
// On other threads LibTorch caches copies of weights in `dtype` until the
// outermost scope ends. Workers do not: a recompute may run after that scope
// has ended, when the copies are gone.
//
// Scopes may be nested. The end of each scope restores the previous state.
// Throws c10::ValueError for another dtype.
// Threads: affects only the thread that creates the scope.
class AutocastScope {
 public:
  AutocastScope(c10::DeviceType device, at::ScalarType dtype,
                bool enabled = true)
      : device_(device),
        enabled_before_(at::autocast::is_autocast_enabled(device)),
        dtype_before_(at::autocast::get_autocast_dtype(device)) {
    TORCH_CHECK_VALUE(!enabled || dtype == at::kBFloat16 || dtype == at::kHalf,
                      "autocast to ", dtype,
                      ": the dtype must be bfloat16 or float16");
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    // LibTorch caches copies of weights in `dtype` while any scope is open.
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
