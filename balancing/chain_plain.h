// Cuts of a chain by the solvers for which all devices are equal, copies take
// no time, and memory has no end. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain.h"

namespace gpipe::balancing::detail {

// balance_cost (balancing/partition.h) of forward + backward, and
// balance_fill_drain (balancing/fill_drain.h). The chain has been checked.
std::vector<std::vector<int64_t>> plain_balances(const Chain& chain);

}  // namespace gpipe::balancing::detail
