#include "gpipe/runtime/leaf_sums.h"

#include <utility>

namespace gpipe {

void LeafSums::add(int64_t microbatch, std::vector<LeafGrad> grads) {
  if (order_ == SumOrder::kAsTheyCome) return add_now(std::move(grads));
  early_.emplace(microbatch, std::move(grads));
  for (auto first = early_.begin();
       first != early_.end() && first->first == next_;
       first = early_.erase(first), ++next_) {
    add_now(std::move(first->second));
  }
}

void LeafSums::add_now(std::vector<LeafGrad> grads) {
  for (LeafGrad& each : grads) {
    sums_.add(static_cast<std::size_t>(each.leaf), std::move(each.grad));
  }
}

at::Tensor LeafSums::take(int64_t leaf) {
  return sums_.take(static_cast<std::size_t>(leaf));
}

}  // namespace gpipe
