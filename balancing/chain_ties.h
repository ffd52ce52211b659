// Which of the best cuts of a chain is taken. Internal to balancing.
// No LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain_paths.h"
#include "balancing/chain_search.h"

namespace gpipe::balancing::detail {

// Of all cuts of which the sum is that of one of the `labels`, and no time is
// larger than in it, the one that balance_chain (balancing/chain.h) says. There
// is a label, and no cut has a smaller sum than a label within its times.
//
// O(p n^2) a label, n^2 being the blocks that the label allows.
std::vector<int64_t> evenest(const ChainPaths& paths,
                             const std::vector<Label>& labels);

}  // namespace gpipe::balancing::detail
