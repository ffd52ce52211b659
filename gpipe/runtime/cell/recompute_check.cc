#include "gpipe/runtime/cell/recompute_check.h"

#include <c10/util/StringUtil.h>

namespace gpipe::internal {

Form::Form(const at::Tensor& tensor) : defined(tensor.defined()) {
  if (!defined) return;
  type = tensor.scalar_type();
  sizes = {tensor.sizes().begin(), tensor.sizes().end()};
}

std::string Form::text() const {
  if (!defined) return "undefined";
  return c10::str(c10::IntArrayRef(sizes), " ", type);
}

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
    outlines.push_back({Form(each), each.defined() && each.requires_grad()});
  }
  return outlines;
}

}  // namespace gpipe::internal
