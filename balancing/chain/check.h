// Checks of a chain's numbers. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain/chain.h"

namespace gpipe::balancing::detail {

// Throws std::invalid_argument if a number of the chain is out of its range, as
// balancing/chain/chain.h says.
void check_chain(const Chain& chain);

// Does check_chain(), and throws std::invalid_argument if `balance` does not
// match the chain.
void check_balance(const Chain& chain, const std::vector<int64_t>& balance);

}  // namespace gpipe::balancing::detail
