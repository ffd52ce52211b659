#include "gpipe/runtime/cell/call_state.h"

#include <ATen/autocast_mode.h>

#include <utility>

namespace gpipe::internal {

KeptTensor::KeptTensor(const at::Tensor& tensor) : defined_(tensor.defined()) {
  if (!defined_) return;
  requires_grad_ = tensor.requires_grad();
  // Detached: the graph behind an input must not live longer than in the plain
  // model.
  saved_ = torch::autograd::SavedVariable(tensor.detach(), /*is_output=*/false);
}

at::Tensor KeptTensor::get() const {
  if (!defined_) return {};
  at::Tensor tensor = saved_.unpack().detach();
  if (requires_grad_) tensor.requires_grad_();
  return tensor;
}

AutocastState::AutocastState() {
  for (const c10::DeviceType device :
       at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    devices_.push_back({at::autocast::is_autocast_enabled(device),
                        at::autocast::get_autocast_dtype(device)});
  }
}

void AutocastState::set() const {
  std::size_t k = 0;
  for (const c10::DeviceType device :
       at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    at::autocast::set_autocast_enabled(device, devices_[k].enabled);
    at::autocast::set_autocast_dtype(device, devices_[k].type);
    ++k;
  }
}

UseAutocast::UseAutocast(const AutocastState& state)
    : cache_(at::autocast::is_autocast_cache_enabled()) {
  state.set();
  at::autocast::set_autocast_cache_enabled(false);
}

UseAutocast::~UseAutocast() {
  before_.set();
  at::autocast::set_autocast_cache_enabled(cache_);
}

void CallSkips::First::save(const SkipKey& key,
                            std::optional<at::Tensor> tensor) {
  ++stashed_[key];
  outer_.save(key, std::move(tensor));
}

std::optional<at::Tensor> CallSkips::First::load(const SkipKey& key) {
  std::optional<at::Tensor> tensor = outer_.load(key);
  const auto own = stashed_.find(key);
  if (own != stashed_.end()) {
    stashed_.erase(own);
    return tensor;
  }
  skips_.popped_.push_back(
      {key, tensor ? std::make_optional(keep_(key, *tensor)) : std::nullopt});
  return tensor;
}

CallSkips::Second::Second(const CallSkips& skips) {
  for (const Popped& each : skips.popped_) {
    held_[each.key].push_back(
        each.tensor ? std::make_optional(each.tensor->get()) : std::nullopt);
  }
}

void CallSkips::Second::save(const SkipKey& key,
                             std::optional<at::Tensor> tensor) {
  auto& tensors = held_[key];
  tensors.insert(tensors.begin(), std::move(tensor));
}

std::optional<at::Tensor> CallSkips::Second::load(const SkipKey& key) {
  const auto found = held_.find(key);
  if (found == held_.end() || found->second.empty()) throw_not_stashed(key);
  std::optional<at::Tensor> tensor = std::move(found->second.front());
  found->second.erase(found->second.begin());
  return tensor;
}

}  // namespace gpipe::internal
