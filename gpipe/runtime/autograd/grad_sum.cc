#include "gpipe/runtime/autograd/grad_sum.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <iterator>
#include <utility>

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::internal {
namespace {

// Returns whether `tensor` can be changed in place without a visible effect:
// there is no other holder, no view of its memory, and no overlapping elements,
// as in the expanded gradient of a sum.
bool is_ours(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || tensor.use_count() != 1 ||
      !tensor.is_non_overlapping_and_dense()) {
    return false;
  }
  // A view, such as the transposed gradient of a Linear's weight, holds its
  // base tensor.
  const bool own_base = tensor.is_view() && tensor._base().use_count() == 1;
  return tensor.storage().use_count() == (own_base ? 2 : 1);
}

}  // namespace

void GradSum::add(int64_t leaf, at::Tensor grad) {
  if (!grad.defined()) return;
  if (leaf >= std::ssize(sums_)) sums_.resize(leaf + 1);
  Sum& sum = sums_[leaf];
  if (!sum.tensor.defined()) {
    sum.own = is_ours(grad);
    sum.tensor = std::move(grad);
    return;
  }
  // No other code holds these tensors, so autograd does not need to track the
  // additions (one per leaf and cell).
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (sum.own && grad.layout() == at::kStrided) {
    sum.tensor.add_(grad);
  } else {
    // LibTorch can add a sparse tensor to a dense one, but not the reverse.
    sum.tensor =
        sum.tensor.is_sparse() ? grad.add(sum.tensor) : sum.tensor.add(grad);
    sum.own = is_ours(sum.tensor);
  }
}

void GradSum::add(int64_t microbatch, int64_t leaf, at::Tensor grad) {
  label_memory(grad, MemoryKind::kGradient);
  if (order_ == SumOrder::kByMicrobatch && microbatch != turn_) {
    early_[microbatch].grads.emplace_back(leaf, std::move(grad));
    return;
  }
  add(leaf, std::move(grad));
}

void GradSum::finish(int64_t microbatch) {
  --left_;
  if (order_ == SumOrder::kAsTheyCome) return;
  early_[microbatch].finished = true;
  for (auto first = early_.begin();
       first != early_.end() && first->first == turn_;) {
    for (auto& [leaf, grad] : first->second.grads) {
      add(leaf, std::move(grad));
    }
    first->second.grads.clear();
    if (!first->second.finished) return;
    first = early_.erase(first);
    ++turn_;
  }
}

bool GradSum::last(int64_t microbatch) const {
  if (left_ != 1) return false;
  return order_ == SumOrder::kAsTheyCome ||
         (microbatch == turn_ && early_.empty());
}

at::Tensor GradSum::take(int64_t leaf) {
  return leaf < std::ssize(sums_) ? std::move(sums_[leaf].tensor)
                                  : at::Tensor();
}

at::Tensor divide(at::Tensor grad, double divisor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (is_ours(grad)) return grad.div_(divisor);
  return grad.div(divisor);
}

}  // namespace gpipe::internal
