#include "training/checkpoint/state_copy.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "training/base/host_memory.h"

namespace gpipe::internal {

const RunState& StateCopy::update(const RunState& state) {
  const c10::NoGradGuard no_grad;
  next_memory_.clear();
  RunState copy;
  copy.step = state.step;
  copy.metadata = state.metadata;
  for (const auto& item : state.model) {
    copy.model.insert(item.key(), copied("model " + item.key(), item.value()));
  }
  if (state.optimizer) {
    copy.optimizer = *state.optimizer;
    for (auto& [name, parameter] : copy.optimizer->parameters) {
      for (auto& [what, tensor] : parameter.tensors) {
        tensor = copied("optimizer " + what + " " + name, tensor);
      }
    }
  }
  for (const auto& [device, bytes] : state.generators) {
    copy.generators[device] = copied("generator " + device, bytes);
  }
  memory_ = std::move(next_memory_);
  state_ = std::move(copy);
  return state_;
}

at::Tensor StateCopy::copied(const std::string& name,
                             const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_meta()) return tensor;
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    return tensor.detach().to(tensor.options().device(at::kCPU),
                              /*non_blocking=*/false, /*copy=*/true);
  }
  at::Tensor& own = next_memory_[name];
  const auto before = memory_.find(name);
  if (before != memory_.end()) own = before->second;
  if (!own.defined() || own.sizes() != tensor.sizes() ||
      own.scalar_type() != tensor.scalar_type()) {
    own = host_memory_for(tensor);
  }
  own.copy_(tensor);
  return own;
}

}  // namespace gpipe::internal
