// Enters and leaves the regions of a program while its nodes run.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "models/exported/program.h"

namespace gpipe::exported {

// The state of gradients and of autocast on this thread, for the nodes that run
// next. Restores the caller's state at the end.
class RegionScope {
 public:
  // `device`: the type of the device on which the nodes run.
  explicit RegionScope(c10::DeviceType device) : device_(device) {}
  ~RegionScope() { leave(); }
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;

  // Leaves the present region and enters `region`.
  void enter(const Region& region);

 private:
  void leave();

  const c10::DeviceType device_;
  bool inside_ = false, autocast_ = false;
  // The caller's state.
  bool grad_ = false, enabled_ = false, cache_ = false;
  c10::ScalarType dtype_ = c10::ScalarType::Float;
};

}  // namespace gpipe::exported
