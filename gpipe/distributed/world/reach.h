// Makes connections before they are needed.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

namespace gpipe::internal {

// Connects this rank to each of `peers` by exchanging one byte with each. Every
// peer must call this function with this rank among its own peers.
//
// Two ranks connect when both first use the connection. Call this function at
// the start, when all ranks are alive, rather than wait in a training step.
//
// `peers`: ranks of `group`, in ascending order.
// `tag`: the tag of the byte. It must be the same on all ranks, and no other
// message may use it during the call.
//
// Blocks until the bytes have arrived. Throws what c10d throws if a connection
// cannot be made within the timeout of the group.
void reach(c10d::Backend& group, const std::vector<int>& peers, int tag);

}  // namespace gpipe::internal
