#include "gpipe/runtime/cell/grad_sum.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

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

void GradSum::add(std::size_t leaf, at::Tensor grad) {
  if (!grad.defined()) return;
  if (leaf >= sums_.size()) sums_.resize(leaf + 1);
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

at::Tensor GradSum::take(std::size_t leaf) {
  return leaf < sums_.size() ? std::move(sums_[leaf].tensor) : at::Tensor();
}

at::Tensor divide(at::Tensor grad, double divisor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (is_ours(grad)) return grad.div_(divisor);
  return grad.div(divisor);
}

}  // namespace gpipe::internal
