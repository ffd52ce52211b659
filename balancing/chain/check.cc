#include "balancing/chain/check.h"

#include <cmath>
#include <cstddef>

#include "balancing/solver/sums.h"
#include "gpipe/text/refuse.h"

namespace gpipe::balancing::detail {
namespace {

using internal::refuse;

template <typename... Place>
void check_number(double value, const Place&... place) {
  if (!std::isfinite(value) || value < 0) {
    refuse(place..., " is ", value, ": it must be finite and not negative");
  }
}

void check_layers(const std::vector<ChainLayer>& layers) {
  for (std::size_t k = 0; k < layers.size(); ++k) {
    const ChainLayer& layer = layers[k];
    check_number(layer.forward, "forward of layer ", k);
    check_number(layer.backward, "backward of layer ", k);
    check_number(layer.output_bytes, "output_bytes of layer ", k);
    check_number(layer.resident_bytes, "resident_bytes of layer ", k);
    check_number(layer.saved_bytes, "saved_bytes of layer ", k);
  }
}

void check_skips(const Chain& chain) {
  const auto layers = std::ssize(chain.layers);
  for (std::size_t k = 0; k < chain.skips.size(); ++k) {
    const ChainSkip& skip = chain.skips[k];
    if (skip.stashed_by < 0 || skip.popped_by >= layers ||
        skip.stashed_by >= skip.popped_by) {
      refuse("skip ", k, " goes from layer ", skip.stashed_by, " to layer ",
             skip.popped_by, ": it must go to a later one of ", layers,
             " layers");
    }
    check_number(skip.bytes, "bytes of skip ", k);
  }
}

void check_devices(const Chain& chain) {
  for (std::size_t j = 0; j < chain.devices.size(); ++j) {
    const ChainDevice& device = chain.devices[j];
    if (!std::isfinite(device.speed) || device.speed <= 0) {
      refuse("speed of device ", j, " is ", device.speed,
             ": it must be finite and greater than 0");
    }
    if (std::isnan(device.memory_bytes) || device.memory_bytes < 0) {
      refuse("memory_bytes of device ", j, " is ", device.memory_bytes,
             ": it must not be negative");
    }
  }
}

void check_kept(const Chain& chain, const std::vector<int64_t>& kept,
                const char* name) {
  if (kept.size() != chain.devices.size()) {
    refuse(name, " has ", kept.size(), " numbers for ", chain.devices.size(),
           " devices: there must be one for each");
  }
  for (std::size_t j = 0; j < kept.size(); ++j) {
    if (kept[j] < 0) {
      refuse(name, " of partition ", j, " is ", kept[j],
             ": it must not be negative");
    }
  }
}

}  // namespace

void check_chain(const Chain& chain) {
  check_partitions(std::ssize(chain.layers), std::ssize(chain.devices));
  check_layers(chain.layers);
  check_skips(chain);
  check_devices(chain);
  check_number(chain.link.latency, "latency of the link");
  check_number(chain.link.seconds_per_byte, "seconds_per_byte of the link");
  check_microbatches(chain.microbatches);
  check_kept(chain, chain.graphs_kept, "graphs_kept");
  check_kept(chain, chain.inputs_kept, "inputs_kept");
}

void check_balance(const Chain& chain, const std::vector<int64_t>& balance) {
  check_chain(chain);
  if (balance.size() != chain.devices.size()) {
    refuse("the balance has ", balance.size(), " partitions for ",
           chain.devices.size(), " devices: there must be one for each");
  }
  check_balance(balance, std::ssize(chain.layers));
}

}  // namespace gpipe::balancing::detail
