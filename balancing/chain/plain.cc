#include "balancing/chain/plain.h"

#include "balancing/solver/fill_drain.h"
#include "balancing/solver/partition.h"

namespace gpipe::balancing::detail {

std::vector<std::vector<int64_t>> plain_balances(const Chain& chain) {
  std::vector<double> forward, backward, both;
  for (const ChainLayer& layer : chain.layers) {
    // Halves do not overflow when they are added.
    forward.push_back(layer.forward / 2);
    backward.push_back(layer.backward / 2);
    both.push_back(forward.back() + backward.back());
  }
  const auto partitions = static_cast<int64_t>(chain.devices.size());
  return {
      balance_cost(both, partitions),
      balance_fill_drain(forward, backward, partitions, chain.microbatches)};
}

}  // namespace gpipe::balancing::detail
