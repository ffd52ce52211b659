#include "gpipe/runtime/partition.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <utility>

namespace gpipe {
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

void collect_buffers(Partition& partition) {
  for (const Layer& layer : partition.layers) {
    for (const auto& module : layer.module.ptr()->modules()) {
      auto& list =
          is_norm(*module) ? partition.norm_buffers : partition.other_buffers;
      for (at::Tensor& buffer : module->buffers(/*recurse=*/false)) {
        if (buffer.defined()) list.push_back(std::move(buffer));
      }
    }
  }
}

}  // namespace

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
      partitions[j].elsewhere = true;
      partitions[j].layers.clear();
    }
    collect_buffers(partitions[j]);
  }
  for (SkipRoute& route : skip_routes(skips, balance)) {
    partitions[route.from].exports.push_back(route);
    partitions[route.to].imports.push_back(std::move(route));
  }
  return partitions;
}

}  // namespace gpipe
