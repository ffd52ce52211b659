#include "gpipe/runtime/cell/buffer_copies.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

namespace gpipe::internal {

void write_below_autograd(at::Tensor tensor, const at::Tensor& value) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  tensor.copy_(value);
}

BufferCopies::BufferCopies(const std::vector<at::Tensor>& buffers) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& buffer : buffers) {
    auto group =
        std::find_if(groups_.begin(), groups_.end(), [&](const Group& each) {
          const at::Tensor& first = each.buffers.front();
          return first.scalar_type() == buffer.scalar_type() &&
                 first.device() == buffer.device();
        });
    if (group == groups_.end()) group = groups_.emplace(group);
    group->buffers.push_back(buffer);
    group->values.push_back(at::empty_like(buffer));
  }
  for (const Group& each : groups_) {
    at::_foreach_copy_(each.values, each.buffers);
  }
}

void BufferCopies::put_back() const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Group& each : groups_) {
    at::_foreach_copy_(each.buffers, each.values);
  }
}

}  // namespace gpipe::internal
