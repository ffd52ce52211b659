// What a chain may not be. Internal to balancing. No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain.h"

namespace gpipe::balancing::detail {

// Errors: std::invalid_argument, as balancing/chain.h says.
void check_chain(const Chain& chain);

// check_chain, and that `balance` fits the chain.
void check_balance(const Chain& chain, const std::vector<int64_t>& balance);

}  // namespace gpipe::balancing::detail
