// Makes connections before they are needed.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace gpipe::internal {

// Exchanges a byte with each of `peers`, which call this, too, with this rank
// among their peers. Gloo makes a connection when both ends use it for the
// first time, and that cannot be interrupted. So it is done where all ranks are
// known to come, and not in a step, where a rank may fail meanwhile.
//
// `peers`: ranks of `group`, in ascending order.
// `tag`: the same on all ranks, at which nothing else arrives in between.
//
// Blocks until the bytes have arrived. Throws what c10d throws if a connection
// cannot be made within the timeout of the group.
void reach(c10d::Backend& group, const std::vector<int>& peers, int tag);

}  // namespace gpipe::internal
