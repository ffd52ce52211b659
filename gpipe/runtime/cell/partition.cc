#include "gpipe/runtime/cell/partition.h"

#include <utility>

namespace gpipe::internal {

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
    for (const Layer& layer : partitions[j].layers) {
      partitions[j].modules.add(layer.name + ".", layer.module.ptr());
    }
  }
  for (SkipRoute& route : skip_routes(skips, balance)) {
    partitions[route.from].exports.push_back(route);
    partitions[route.to].imports.push_back(std::move(route));
  }
  return partitions;
}

}  // namespace gpipe::internal
