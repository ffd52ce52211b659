#include "gpipe/runtime/recompute/buffers.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "gpipe/runtime/operators/norm_statistics.h"

namespace gpipe::internal {
namespace {

bool is_norm(const torch::nn::Module& module) {
  using namespace torch::nn;
  return dynamic_cast<const BatchNorm1dImpl*>(&module) ||
         dynamic_cast<const BatchNorm2dImpl*>(&module) ||
         dynamic_cast<const BatchNorm3dImpl*>(&module) ||
         dynamic_cast<const InstanceNorm1dImpl*>(&module) ||
         dynamic_cast<const InstanceNorm2dImpl*>(&module) ||
         dynamic_cast<const InstanceNorm3dImpl*>(&module);
}

}  // namespace

void CalledModules::add(std::string prefix,
                        std::shared_ptr<torch::nn::Module> module) {
  for (auto& each : module->modules()) {
    auto& buffers = is_norm(*each) ? norm_buffers_ : other_buffers_;
    for (at::Tensor& buffer : each->buffers(/*recurse=*/false)) {
      if (buffer.defined()) buffers.push_back(std::move(buffer));
    }
    for (at::Tensor& parameter : each->parameters(/*recurse=*/false)) {
      if (parameter.defined()) parameters_.push_back(std::move(parameter));
    }
    modules_.push_back(std::move(each));
  }
  roots_.emplace_back(std::move(prefix), std::move(module));
}

std::vector<bool> CalledModules::training() const {
  std::vector<bool> training;
  training.reserve(modules_.size());
  for (const auto& each : modules_) training.push_back(each->is_training());
  return training;
}

bool CalledModules::is_norm_buffer(const at::Tensor& buffer) const {
  return std::any_of(
      norm_buffers_.begin(), norm_buffers_.end(),
      [&](const at::Tensor& each) { return each.is_same(buffer); });
}

void CalledModules::add_norm_buffers(
    const std::vector<at::Tensor>& statistics) {
  for (const at::Tensor& each : statistics) {
    const auto found = std::find_if(
        other_buffers_.begin(), other_buffers_.end(),
        [&](const at::Tensor& buffer) { return buffer.is_same(each); });
    if (found == other_buffers_.end()) continue;
    norm_buffers_.push_back(std::move(*found));
    other_buffers_.erase(found);
    copies_.clear();
  }
}

std::vector<BufferValue> CalledModules::copy_buffers() {
  const c10::NoGradGuard no_grad;
  std::vector<BufferValue> all;
  all.reserve(norm_buffers_.size() + other_buffers_.size());
  const BufferCopies norms(norm_buffers_);
  norms.for_each([&](const at::Tensor& buffer, const at::Tensor& value) {
    all.push_back({buffer, WatchedVersion(buffer), value, /*is_norm=*/true});
  });
  std::vector<std::pair<WatchedVersion, WeakTensor>> copies;
  for (std::size_t k = 0; k < other_buffers_.size(); ++k) {
    const at::Tensor& buffer = other_buffers_[k];
    const WatchedVersion version(buffer);
    at::Tensor value;
    if (k < copies_.size() && !copies_[k].first.is_changed()) {
      if (auto alive = copies_[k].second.lock()) {
        value = at::Tensor(std::move(alive));
      }
    }
    if (!value.defined()) value = buffer.clone();
    copies.emplace_back(version, WeakTensor(value.getIntrusivePtr()));
    all.push_back({buffer, version, std::move(value), /*is_norm=*/false});
  }
  copies_ = std::move(copies);
  return all;
}

std::string CalledModules::name_of(const at::Tensor& tensor) const {
  for (const auto& [prefix, module] : roots_) {
    for (const auto& named :
         {module->named_parameters(), module->named_buffers()}) {
      for (const auto& each : named) {
        if (each.value().is_same(tensor)) return prefix + each.key();
      }
    }
  }
  return "";
}

namespace {

thread_local PastBuffers* innermost = nullptr;

}  // namespace

BufferCopies::BufferCopies(const std::vector<at::Tensor>& buffers) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& each : buffers) add(each, at::empty_like(each));
  for (const Group& each : groups_) {
    at::_foreach_copy_(each.values, each.buffers);
  }
}

void BufferCopies::add(const at::Tensor& buffer, at::Tensor value) {
  Group& group = group_of(buffer);
  group.buffers.push_back(buffer);
  group.values.push_back(std::move(value));
}

BufferCopies::Group& BufferCopies::group_of(const at::Tensor& buffer) {
  const auto found =
      std::find_if(groups_.begin(), groups_.end(), [&](const Group& each) {
        const at::Tensor& first = each.buffers.front();
        return first.scalar_type() == buffer.scalar_type() &&
               first.device() == buffer.device();
      });
  return found == groups_.end() ? groups_.emplace_back() : *found;
}

void BufferCopies::put_back() const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Group& each : groups_) {
    // CUDA's kernels for lists raise versions themselves, so they get tensors
    // with other version counters.
    std::vector<at::Tensor> memory;
    memory.reserve(each.buffers.size());
    for (const at::Tensor& buffer : each.buffers) {
      memory.push_back(buffer.variable_data());
    }
    at::_foreach_copy_(memory, each.values);
  }
}

std::vector<at::Tensor> BufferCopies::buffers() const {
  std::vector<at::Tensor> all;
  for (const Group& each : groups_) {
    all.insert(all.end(), each.buffers.begin(), each.buffers.end());
  }
  return all;
}

PastBuffers::PastBuffers(const BufferCopies& past)
    : now_(past.buffers()), outer_(innermost) {
  for (const at::Tensor& each : past.buffers()) {
    if (each.has_storage()) {
      storages_.insert(each.storage().unsafeGetStorageImpl());
    }
  }
  try {
    past.put_back();
  } catch (...) {
    end();
    throw;
  }
  innermost = this;
}

PastBuffers::~PastBuffers() {
  innermost = outer_;
  end();
}

void PastBuffers::restore() {
  now_.put_back();
  restored_ = true;  // after an error, the destructor tries once more
  for (const Saved& each : std::exchange(saved_, {})) {
    if (each.version.is_changed()) {
      each.copy.unsafeGetTensorImpl()->bump_version();
    }
  }
}

void PastBuffers::end() noexcept {
  if (restored_) return;
  try {
    restore();
  } catch (...) {
    // The device has failed. The error that reported this is more useful.
  }
}

at::Tensor PastBuffers::to_save(const at::Tensor& tensor) {
  if (!innermost || UnreadStatistics::in_scope() || !tensor.defined() ||
      !tensor.has_storage()) {
    return tensor;
  }
  const auto* const storage = tensor.storage().unsafeGetStorageImpl();
  for (PastBuffers* scope = innermost; scope; scope = scope->outer_) {
    if (scope->storages_.count(storage) == 0) continue;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor copy = tensor.clone();
    scope->saved_.push_back({WatchedVersion(tensor), copy});
    return copy;
  }
  return tensor;
}

}  // namespace gpipe::internal
