#include "balancing/chain/memory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <sstream>

#include "balancing/solver/infeasible.h"
#include "balancing/solver/limits.h"

namespace gpipe::balancing::detail {
namespace {

// The result of filling the devices one after the other, in all possible ways.
struct Filling {
  int64_t device;  // the device at which it fails
  Cut cut;         // the largest number of layers that can be before it
};

Filling fill(const ChainCosts& costs) {
  const int64_t layers = costs.layers(), partitions = costs.partitions();
  std::vector<bool> reached(layers + 1, false);  // by cut
  reached[0] = true;
  Cut farthest = 0;
  for (int64_t j = 0; j < partitions; ++j) {
    std::vector<bool> next(layers + 1, false);
    Cut next_farthest = -1;
    const Cut latest = layers - (partitions - j - 1);
    for (Cut first = j; first < latest; ++first) {
      if (!reached[first]) continue;
      BlockBytes bytes(costs.chain(), costs.skips(), j, first);
      while (bytes.last() < latest) {
        bytes.extend();
        if (bytes.memory() > costs.chain().devices[j].memory_bytes) break;
        next[bytes.last()] = true;
        next_farthest = std::max(next_farthest, bytes.last());
      }
    }
    if (next_farthest < 0) return {j, farthest};
    reached = std::move(next);
    farthest = next_farthest;
  }
  return {partitions - 1, farthest};
}

// Returns the first layer that is too large for every device, whatever else is
// on the device; -1 if there is none. The layer's input is not counted, because
// in a larger block the input may be smaller.
int64_t layer_too_large(const Chain& chain) {
  for (std::size_t k = 0; k < chain.layers.size(); ++k) {
    bool fits = false;
    for (std::size_t j = 0; j < chain.devices.size() && !fits; ++j) {
      fits = chain.layers[k].resident_bytes +
                 static_cast<double>(chain.graphs_kept[j]) *
                     chain.layers[k].saved_bytes <=
             chain.devices[j].memory_bytes;
    }
    if (!fits) return static_cast<int64_t>(k);
  }
  return -1;
}

}  // namespace

void throw_infeasible(const ChainCosts& costs) {
  const Chain& chain = costs.chain();
  const auto least = [&](const auto& demand) {
    return least_largest(
        costs.layers(), costs.partitions(),
        [&](int64_t device, Cut first) {
          return BlockBytes(chain, costs.skips(), device, first);
        },
        demand);
  };
  const double least_bytes =
      least([](int64_t, const BlockBytes& block) { return block.memory(); });
  const double least_factor =
      least([&](int64_t device, const BlockBytes& block) {
        return factor_for(block.memory(), chain.devices[device].memory_bytes);
      });

  std::ostringstream text;
  text.precision(15);
  text << "no cut of " << costs.layers() << " layers into "
       << costs.partitions() << " partitions respects the memory limits: ";
  int64_t layer = layer_too_large(chain), device = -1;
  if (layer >= 0) {
    text << "layer " << layer << " is too large for every device by itself";
  } else {
    const Filling filling = fill(costs);
    layer = filling.cut;
    device = filling.device;
    text << "layer " << layer << " does not fit on device " << device << " of "
         << chain.devices[device].memory_bytes
         << " bytes, even if the devices before it take as many layers as "
            "they can";
  }
  const bool equal =
      std::ranges::all_of(chain.devices, [&](const ChainDevice& each) {
        return each.memory_bytes == chain.devices[0].memory_bytes;
      });
  if (equal) {
    text << "; a cut exists if every device has " << least_bytes << " bytes";
  } else if (std::isinf(least_factor)) {
    text
        << "; no multiple of these limits is enough, but a cut exists if every "
           "device has "
        << least_bytes << " bytes";
  } else {
    text << "; a cut exists if every device has " << least_factor
         << " times its memory";
  }
  throw InfeasibleError(text.str(), layer, device, least_bytes, least_factor);
}

}  // namespace gpipe::balancing::detail
