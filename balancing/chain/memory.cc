#include "balancing/chain/memory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <sstream>

#include "balancing/solver/infeasible.h"

namespace gpipe::balancing::detail {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns the smallest number f with f * limit >= bytes in double arithmetic.
double factor_for(double bytes, double limit) {
  if (bytes <= 0) return 0;
  if (limit == 0) return kInfinity;
  if (std::isinf(limit)) return 0;
  double factor = bytes / limit;
  while (factor * limit < bytes) factor = std::nextafter(factor, kInfinity);
  for (;;) {
    const double less = std::nextafter(factor, 0.0);
    if (less * limit < bytes) return factor;
    factor = less;
  }
}

// Returns the minimum over all cuts of the largest demand(j, memory of block
// j). `demand` must not decrease as the memory grows.
template <typename Demand>
double least_largest(const ChainCosts& costs, const Demand& demand) {
  const int64_t layers = costs.layers(), partitions = costs.partitions();
  std::vector<double> least(layers + 1, kInfinity);  // by cut
  least[0] = 0;
  for (int64_t j = 0; j < partitions; ++j) {
    std::vector<double> next(layers + 1, kInfinity);
    const Cut latest = layers - (partitions - j - 1);
    for (Cut first = j; first < latest; ++first) {
      if (std::isinf(least[first])) continue;
      BlockBytes bytes(costs.chain(), costs.skips(), j, first);
      while (bytes.last() < latest) {
        bytes.extend();
        next[bytes.last()] =
            std::min(next[bytes.last()],
                     std::max(least[first], demand(j, bytes.memory())));
      }
    }
    least = std::move(next);
  }
  return least[layers];
}

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
  const double least_bytes =
      least_largest(costs, [](int64_t, double bytes) { return bytes; });
  const double least_factor =
      least_largest(costs, [&](int64_t device, double bytes) {
        return factor_for(bytes, chain.devices[device].memory_bytes);
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
