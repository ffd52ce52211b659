// Finds parameters that change between a forward and its backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "gpipe/runtime/recompute/watched_version.h"

namespace gpipe::internal {

// The versions, and a few values, of the leaves of a graph.
//
// An optimizer of LibTorch may write to a parameter without a new version
// (torch::optim::SGD writes to `data()`), which autograd does not notice. On
// the CPU such a change is found by the values of three elements. On an
// accelerator it is not found, because to read a value is to wait for the
// device.
//
// Threads: one.
class LeafChanges {
 public:
  // Adds a leaf as it is now. The leaf must outlive this object.
  void watch(const at::Tensor& leaf);

  // Returns the first leaf, in the order of watch(), whose values but not whose
  // version have changed since; null if there is none.
  const at::Tensor* without_version() const;

  // Returns the first leaf with another version than at watch(); null if there
  // is none.
  const at::Tensor* with_version() const;

 private:
  struct Watched {
    at::Tensor leaf;
    WatchedVersion version;
    uint64_t values;  // a checksum of some elements; 0 if none is read
  };
  std::vector<Watched> leaves_;
};

}  // namespace gpipe::internal
