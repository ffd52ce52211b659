#include "gpipe/runtime/pipeline/leaf_changes.h"

#include <algorithm>
#include <cstring>

namespace gpipe::internal {
namespace {

// Returns a checksum of the first, middle and last element in memory. Returns 0
// for tensors whose elements cannot be read at once.
uint64_t checksum(const at::Tensor& leaf) {
  if (!leaf.is_cpu() || leaf.layout() != at::kStrided || leaf.numel() == 0 ||
      !leaf.is_non_overlapping_and_dense()) {
    return 0;
  }
  const auto* const data = static_cast<const char*>(leaf.const_data_ptr());
  const auto size = static_cast<std::size_t>(leaf.element_size());
  const int64_t last = leaf.numel() - 1;
  uint64_t sum = 0;
  for (const int64_t k : {int64_t{0}, last / 2, last}) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, data + static_cast<std::size_t>(k) * size,
                std::min(size, sizeof(bytes)));
    sum = sum * 0x9e3779b97f4a7c15U + bytes;
  }
  return sum;
}

}  // namespace

void LeafChanges::watch(const at::Tensor& leaf) {
  leaves_.push_back({leaf, WatchedVersion(leaf), checksum(leaf)});
}

const at::Tensor* LeafChanges::without_version() const {
  for (const Watched& each : leaves_) {
    if (!each.version.is_changed() && checksum(each.leaf) != each.values) {
      return &each.leaf;
    }
  }
  return nullptr;
}

const at::Tensor* LeafChanges::with_version() const {
  for (const Watched& each : leaves_) {
    if (each.version.is_changed()) return &each.leaf;
  }
  return nullptr;
}

}  // namespace gpipe::internal
