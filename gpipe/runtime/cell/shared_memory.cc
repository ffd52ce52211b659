#include "gpipe/runtime/cell/shared_memory.h"

#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>

#include <cstddef>

namespace gpipe::internal {
namespace {

bool has_memory(const Activation& crossing) {
  return crossing.tensor.defined() && crossing.tensor.has_storage();
}

bool in_common(const Activation& a, const Activation& b) {
  if (!has_memory(a) || !has_memory(b)) return false;
  if (!a.tensor.is_alias_of(b.tensor)) return false;
  return at::get_overlap_status(a.tensor, b.tensor) != at::MemOverlapStatus::No;
}

}  // namespace

void mark_shared(std::vector<Activation>& crossings) {
  for (std::size_t k = 1; k < crossings.size(); ++k) {
    for (std::size_t n = 0; n < k; ++n) {
      if (!in_common(crossings[n], crossings[k])) continue;
      crossings[n].shared = crossings[k].shared = true;
    }
  }
}

SharedInput::SharedInput(const std::vector<Activation>& input) {
  for (const Activation& each : input) {
    if (!each.shared || !has_memory(each) || each.tensor.is_inference()) {
      continue;
    }
    tensors_.push_back({WatchedVersion(each.tensor),
                        each.tensor.storage().getWeakStorageImpl()});
  }
}

void SharedInput::check_unchanged(int64_t partition) const {
  for (const Tensor& each : tensors_) {
    TORCH_CHECK(
        !each.version.is_changed(), "a layer of partition ", partition,
        " changes a tensor in place that an earlier partition has given to "
        "more than one layer (returned twice, or stashed and returned), so "
        "that the other layers would get another value or gradient than in "
        "the plain model; let that layer work out of place (such as ReLU "
        "without inplace), or pass a clone()");
  }
}

void SharedInput::mark(std::vector<Activation>& outputs) const {
  for (const Tensor& each : tensors_) {
    const auto memory = each.memory.lock();
    for (Activation& output : outputs) {
      if (memory && has_memory(output) &&
          output.tensor.storage().unsafeGetStorageImpl() == memory.get()) {
        output.shared = true;
      }
    }
  }
}

UnsplitInput::UnsplitInput(const std::vector<Activation>& input) {
  for (const Activation& each : input) {
    if (each.unsplit >= 0 && has_memory(each)) {
      tensors_.push_back({each.unsplit, each.tensor});
    }
  }
}

void UnsplitInput::mark(std::vector<Activation>& outputs) const {
  for (const auto& [element, input] : tensors_) {
    for (Activation& output : outputs) {
      if (has_memory(output) && output.tensor.is_alias_of(input) &&
          output.tensor.storage_offset() == input.storage_offset() &&
          output.tensor.sizes() == input.sizes() &&
          output.tensor.strides() == input.strides() &&
          output.tensor.scalar_type() == input.scalar_type()) {
        output.unsplit = element;
      }
    }
  }
}

}  // namespace gpipe::internal
