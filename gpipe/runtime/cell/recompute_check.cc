#include "gpipe/runtime/cell/recompute_check.h"

namespace gpipe::internal {

std::vector<int64_t> versions_of(const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> versions;
  versions.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    versions.push_back(version_of(tensor));
  }
  return versions;
}

std::vector<int64_t> versions_of(const std::vector<Activation>& inputs) {
  std::vector<int64_t> versions;
  versions.reserve(inputs.size());
  for (const Activation& each : inputs) {
    versions.push_back(version_of(each.tensor));
  }
  return versions;
}

std::vector<std::pair<at::Tensor, int64_t>> frozen_of(
    const Partition& partition) {
  std::vector<std::pair<at::Tensor, int64_t>> frozen;
  for (const at::Tensor& each : partition.parameters) {
    if (!each.requires_grad()) frozen.emplace_back(each, version_of(each));
  }
  return frozen;
}

std::vector<bool> training_of(const Partition& partition) {
  std::vector<bool> training;
  training.reserve(partition.modules.size());
  for (const auto& module : partition.modules) {
    training.push_back(module->is_training());
  }
  return training;
}

std::vector<Outline> outlines_of(const std::vector<at::Tensor>& outputs) {
  std::vector<Outline> outlines;
  outlines.reserve(outputs.size());
  for (const at::Tensor& each : outputs) {
    if (each.defined()) {
      outlines.push_back({true,
                          each.requires_grad(),
                          each.scalar_type(),
                          {each.sizes().begin(), each.sizes().end()}});
    } else {
      outlines.emplace_back();
    }
  }
  return outlines;
}

}  // namespace gpipe::internal
