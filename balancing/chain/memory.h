// The explanation of why no cut respects the memory limits. Internal to
// balancing. No LibTorch.
#pragma once

#include "balancing/chain/costs.h"

namespace gpipe::balancing::detail {

// Throws InfeasibleError (balancing/solver/infeasible.h). Call it only if no
// cut of the chain respects the limits.
//
// Complexity: O(p n^2). The smallest sufficient limit is the minimum over all
// cuts of the largest block, by dynamic programming.
[[noreturn]] void throw_infeasible(const ChainCosts& costs);

}  // namespace gpipe::balancing::detail
