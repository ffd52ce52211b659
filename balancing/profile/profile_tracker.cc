#include "balancing/profile/profile_tracker.h"

#include <utility>

namespace gpipe::balancing {
namespace {

std::optional<at::Tensor> none_if_undefined(at::Tensor tensor) {
  if (!tensor.defined()) return std::nullopt;
  return tensor;
}

}  // namespace

void ProfileTracker::save(const SkipKey& key,
                          std::optional<at::Tensor> tensor) {
  stashed_[key] = tensor ? std::move(*tensor) : at::Tensor();
}

std::optional<at::Tensor> ProfileTracker::load(const SkipKey& key) {
  // Stashed within the same layer: the graph is not cut.
  if (auto own = stashed_.extract(key)) {
    return none_if_undefined(std::move(own.mapped()));
  }
  auto found = travelling_.extract(key);
  if (!found) throw_not_stashed(key);
  internal::GraphInputs input_edges({found.mapped()}, /*leaf=*/false);
  popped_.push_back(input_edges.edges()[0]);
  return none_if_undefined(std::move(input_edges.tensors()[0]));
}

std::vector<at::Tensor> ProfileTracker::stashed() const {
  std::vector<at::Tensor> tensors;
  for (const auto& [key, tensor] : stashed_) tensors.push_back(tensor);
  return tensors;
}

void ProfileTracker::end_layer() {
  for (const auto& [key, tensor] : stashed_) {
    travelling_.insert_or_assign(key, internal::without_graph(tensor));
  }
  stashed_.clear();
  popped_.clear();
}

}  // namespace gpipe::balancing
