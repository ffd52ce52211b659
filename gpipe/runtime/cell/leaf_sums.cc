#include "gpipe/runtime/cell/leaf_sums.h"

#include <utility>

#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe::internal {

void LeafSums::add(int64_t microbatch, int64_t leaf, at::Tensor grad) {
  label_memory(grad, MemoryKind::kGradient);
  if (order_ == SumOrder::kByMicrobatch && microbatch != turn_) {
    early_[microbatch].grads.emplace_back(leaf, std::move(grad));
    return;
  }
  sums_.add(static_cast<std::size_t>(leaf), std::move(grad));
}

void LeafSums::finish(int64_t microbatch) {
  --left_;
  if (order_ == SumOrder::kAsTheyCome) return;
  early_[microbatch].finished = true;
  for (auto first = early_.begin();
       first != early_.end() && first->first == turn_;) {
    for (auto& [leaf, grad] : first->second.grads) {
      sums_.add(static_cast<std::size_t>(leaf), std::move(grad));
    }
    first->second.grads.clear();
    if (!first->second.finished) return;
    first = early_.erase(first);
    ++turn_;
  }
}

bool LeafSums::last(int64_t microbatch) const {
  if (left_ != 1) return false;
  return order_ == SumOrder::kAsTheyCome ||
         (microbatch == turn_ && early_.empty());
}

at::Tensor LeafSums::take(int64_t leaf) {
  return sums_.take(static_cast<std::size_t>(leaf));
}

void LeafSums::put_back(int64_t leaf, at::Tensor sum) {
  sums_.add(static_cast<std::size_t>(leaf), std::move(sum));
}

}  // namespace gpipe::internal
