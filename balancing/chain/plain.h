// Cuts of a chain by the solvers that assume equal devices, free copies and
// unlimited memory. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain/chain.h"

namespace gpipe::balancing::detail {

// Returns the cuts of balance_cost() (balancing/solver/partition.h) for forward
// + backward, and of balance_fill_drain() (balancing/solver/fill_drain.h). The
// chain must have passed check_chain().
std::vector<std::vector<int64_t>> plain_balances(const Chain& chain);

}  // namespace gpipe::balancing::detail
