#include "gpipe/runtime/cell/partition.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <algorithm>
#include <utility>

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

void collect_modules(Partition& partition) {
  for (const Layer& layer : partition.layers) {
    for (auto& module : layer.module.ptr()->modules()) {
      auto& list =
          is_norm(*module) ? partition.norm_buffers : partition.other_buffers;
      for (at::Tensor& buffer : module->buffers(/*recurse=*/false)) {
        if (buffer.defined()) list.push_back(std::move(buffer));
      }
      for (at::Tensor& each : module->parameters(/*recurse=*/false)) {
        if (each.defined()) partition.parameters.push_back(std::move(each));
      }
      partition.modules.push_back(std::move(module));
    }
  }
}

}  // namespace

int64_t version_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_inference()) return -1;
  return static_cast<int64_t>(tensor._version());
}

void Partition::add_norm_buffers(const std::vector<at::Tensor>& statistics) {
  for (const at::Tensor& each : statistics) {
    const auto found = std::find_if(
        other_buffers.begin(), other_buffers.end(),
        [&](const at::Tensor& buffer) { return buffer.is_same(each); });
    if (found == other_buffers.end()) continue;
    norm_buffers.push_back(std::move(*found));
    other_buffers.erase(found);
    known_.clear();
  }
}

std::vector<BufferValue> Partition::values_of_other_buffers() {
  const c10::NoGradGuard no_grad;
  std::vector<BufferValue> values;
  for (std::size_t k = 0; k < other_buffers.size(); ++k) {
    const at::Tensor& buffer = other_buffers[k];
    const int64_t version = version_of(buffer);
    at::Tensor value;
    if (k < known_.size() && known_[k].first == version) {
      if (auto alive = known_[k].second.lock()) {
        value = at::Tensor(std::move(alive));
      }
    }
    if (!value.defined()) value = buffer.clone();
    values.push_back({buffer, version, std::move(value)});
  }
  known_.clear();
  for (const BufferValue& each : values) {
    known_.emplace_back(each.version, WeakTensor(each.value.getIntrusivePtr()));
  }
  return values;
}

std::string Partition::name_of(const at::Tensor& parameter) const {
  for (const Layer& layer : layers) {
    for (const auto& named : layer.module.ptr()->named_parameters()) {
      if (named.value().is_same(parameter)) {
        return layer.name + "." + named.key();
      }
    }
  }
  return "";
}

std::vector<Partition> partition(std::vector<Layer> layers,
                                 const std::vector<int64_t>& balance,
                                 const std::vector<c10::Device>& devices) {
  std::vector<LayerSkips> skips;
  for (const Layer& layer : layers) skips.push_back(layer.skips);

  std::vector<Partition> partitions(balance.size());
  std::size_t next = 0;
  for (std::size_t j = 0; j < balance.size(); ++j) {
    partitions[j].index = static_cast<int64_t>(j);
    partitions[j].device = devices[j];
    for (int64_t k = 0; k < balance[j]; ++k) {
      partitions[j].layers.push_back(std::move(layers[next++]));
    }
    if (partitions[j].layers.front().module.is_empty()) {
      partitions[j].remote = true;
      partitions[j].layers.clear();
    }
    collect_modules(partitions[j]);
  }
  for (SkipRoute& route : skip_routes(skips, balance)) {
    partitions[route.from].exports.push_back(route);
    partitions[route.to].imports.push_back(std::move(route));
  }
  return partitions;
}

}  // namespace gpipe::internal
