// What makes the memory limits of a chain too small. Internal to balancing.
// No LibTorch.
#pragma once

#include "balancing/chain_costs.h"

namespace gpipe::balancing::detail {

// Throws InfeasibleError (balancing/infeasible.h). No cut of the chain respects
// the limits. O(p n^2): the least limit is the least over all cuts of the
// largest block, by dynamic programming.
[[noreturn]] void throw_infeasible(const ChainCosts& costs);

}  // namespace gpipe::balancing::detail
