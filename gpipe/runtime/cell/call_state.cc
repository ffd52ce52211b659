#include "gpipe/runtime/cell/call_state.h"

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "gpipe/runtime/cell/partition.h"
#include "gpipe/runtime/cell/recompute_check.h"

namespace gpipe::internal {
namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  const c10::NoGradGuard no_grad;
  return tensor.clone();
}

}  // namespace

KeptTensor::KeptTensor(const at::Tensor& tensor)
    : defined_(tensor.defined()), version_(tensor) {
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

ModuleState::ModuleState(std::shared_ptr<torch::nn::Module> module)
    : module_(std::move(module)) {
  for (const auto& each : module_->modules()) {
    training_.push_back(each->is_training());
  }
  for (const auto& each : module_->named_parameters()) {
    if (!each.value().defined()) continue;
    parameters_.push_back(
        {each.key(), each.value(), version_of(each.value()), {}});
  }
  for (const auto& each : module_->named_buffers()) {
    if (!each.value().defined()) continue;
    buffers_.push_back({each.key(), each.value(), version_of(each.value()),
                        copy_of(each.value())});
  }
}

void ModuleState::first_call_done(const std::vector<at::Tensor>& statistics) {
  for (Named& each : buffers_) {
    const bool is_statistic = std::any_of(
        statistics.begin(), statistics.end(),
        [&](const at::Tensor& tensor) { return tensor.is_same(each.tensor); });
    if (!is_statistic && version_of(each.tensor) == each.version) {
      each.before.reset();
    }
  }
}

void ModuleState::check_unchanged() const {
  std::size_t k = 0;
  for (const auto& each : module_->modules()) {
    TORCH_CHECK(k < training_.size() && each->is_training() == training_[k],
                "train() or eval() was called between forward and backward; ",
                module_->name(),
                " cannot be computed again in another mode. Call backward "
                "first");
    ++k;
  }
  for (const Named& each : parameters_) {
    TORCH_CHECK(version_of(each.tensor) == each.version, "parameter '",
                each.name, "' (", Form(each.tensor).text(), ") of ",
                module_->name(),
                " has been changed in place between forward and backward; the "
                "forward cannot be computed again with it. Call backward "
                "first, or forward again");
  }
  for (const Named& each : buffers_) {
    TORCH_CHECK(
        each.before.defined() || version_of(each.tensor) == each.version,
        "buffer '", each.name, "' (", Form(each.tensor).text(), ") of ",
        module_->name(),
        " has been changed in place between forward and backward, and not by "
        "the forward that is computed again; call backward first, or change "
        "the buffer in each forward");
  }
}

BufferCopies ModuleState::changed_buffers() const {
  BufferCopies changed;
  for (const Named& each : buffers_) {
    if (each.before.defined()) changed.add(each.tensor, each.before);
  }
  return changed;
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
      {key, tensor ? std::make_optional(keep_(*tensor)) : std::nullopt});
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

void CallSkips::check_unchanged(const char* when) const {
  for (const Popped& each : popped_) {
    TORCH_CHECK(!each.tensor || !each.tensor->is_changed(), "the skip tensor '",
                each.key.name, "' has been changed in place ", when,
                ", so that the function that popped it cannot be computed "
                "again; change a clone instead");
  }
}

}  // namespace gpipe::internal
