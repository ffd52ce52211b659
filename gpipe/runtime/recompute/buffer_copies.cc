#include "gpipe/runtime/recompute/buffer_copies.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <utility>

#include "gpipe/runtime/operators/norm_statistics.h"

namespace gpipe::internal {
namespace {

thread_local PastBuffers* innermost = nullptr;

}  // namespace

BufferCopies::BufferCopies(const std::vector<at::Tensor>& buffers) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& each : buffers) add(each, at::empty_like(each));
  for (const Group& each : groups_) {
    at::_foreach_copy_(each.values, each.buffers);
  }
}

void BufferCopies::add(const at::Tensor& buffer, at::Tensor value) {
  Group& group = group_of(buffer);
  group.buffers.push_back(buffer);
  group.values.push_back(std::move(value));
}

BufferCopies::Group& BufferCopies::group_of(const at::Tensor& buffer) {
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&](const Group& each) {
        const at::Tensor& first = each.buffers.front();
        return first.scalar_type() == buffer.scalar_type() &&
               first.device() == buffer.device();
      });
  return found == groups_.end() ? groups_.emplace_back() : *found;
}

void BufferCopies::put_back() const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Group& each : groups_) {
    // CUDA's kernels for lists raise versions themselves, so they get tensors
    // with other version counters.
    std::vector<at::Tensor> memory;
    memory.reserve(each.buffers.size());
    for (const at::Tensor& buffer : each.buffers) {
      memory.push_back(buffer.variable_data());
    }
    at::_foreach_copy_(memory, each.values);
  }
}

std::vector<at::Tensor> BufferCopies::buffers() const {
  std::vector<at::Tensor> all;
  for (const Group& each : groups_) {
    all.insert(all.end(), each.buffers.begin(), each.buffers.end());
  }
  return all;
}

PastBuffers::PastBuffers(const BufferCopies& past)
    : now_(past.buffers()), outer_(innermost) {
  for (const at::Tensor& each : past.buffers()) {
    if (each.has_storage()) {
      storages_.insert(each.storage().unsafeGetStorageImpl());
    }
  }
  try {
    past.put_back();
  } catch (...) {
    end();
    throw;
  }
  innermost = this;
}

PastBuffers::~PastBuffers() {
  innermost = outer_;
  end();
}

void PastBuffers::restore() {
  now_.put_back();
  restored_ = true;  // after an error, the destructor tries once more
  for (const Saved& each : std::exchange(saved_, {})) {
    if (each.version.is_changed()) {
      each.copy.unsafeGetTensorImpl()->bump_version();
    }
  }
}

void PastBuffers::end() noexcept {
  if (restored_) return;
  try {
    restore();
  } catch (...) {
    // The device has failed. The error that reported this is more useful.
  }
}

at::Tensor PastBuffers::to_save(const at::Tensor& tensor) {
  if (!innermost || UnreadStatistics::in_scope() || !tensor.defined() ||
      !tensor.has_storage()) {
    return tensor;
  }
  const auto* const storage = tensor.storage().unsafeGetStorageImpl();
  for (PastBuffers* scope = innermost; scope; scope = scope->outer_) {
    if (scope->storages_.count(storage) == 0) continue;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor copy = tensor.clone();
    scope->saved_.push_back({WatchedVersion(tensor), copy});
    return copy;
  }
  return tensor;
}

}  // namespace gpipe::internal
