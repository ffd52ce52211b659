#include "gpipe/runtime/recompute/called_modules.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <algorithm>
#include <cstddef>

#include "gpipe/runtime/recompute/buffer_copies.h"

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

}  // namespace gpipe::internal
