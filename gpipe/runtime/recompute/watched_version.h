// Notices changes of a tensor in place.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace gpipe::internal {

// The version of a tensor at the construction of this object. LibTorch counts
// the changes of a tensor in place by its version. Does not keep the tensor's
// memory.
class WatchedVersion {
 public:
  WatchedVersion() = default;
  // Undefined and inference tensors have no version, and count as unchanged.
  explicit WatchedVersion(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    then_ = now();
  }

  // Returns whether the tensor has been changed in place since.
  bool is_changed() const { return now() != then_; }

  // Return the version at the construction and the present one; 0 for tensors
  // without version.
  uint32_t then() const { return then_; }
  uint32_t now() const {
    return counter_.enabled() ? counter_.current_version() : 0;
  }

 private:
  c10::VariableVersion counter_;
  uint32_t then_ = 0;
};

}  // namespace gpipe::internal
