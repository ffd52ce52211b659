// The choice among the best cuts of a chain. Internal to balancing. No
// LibTorch.
#pragma once

#include <cstdint>
#include <vector>

#include "balancing/chain/paths.h"
#include "balancing/chain/search.h"

namespace gpipe::balancing::detail {

// Chooses among the cuts that match one of the `labels`: their sum is that of
// the label, and none of their times is larger than the label's. Returns the
// cut that the tie-break of balance_chain() (balancing/chain/chain.h) selects.
// `labels` must not be empty, and no cut within the times of a label may have a
// smaller sum than the label.
//
// Complexity: O(p n^2) per label, where n^2 is the number of blocks that the
// label allows.
std::vector<int64_t> evenest(const ChainPaths& paths,
                             const std::vector<Label>& labels);

}  // namespace gpipe::balancing::detail
