// An exchange of texts between ranks.
#pragma once

#include <string>
#include <vector>

#include "gpipe/distributed/world/communicator.h"

namespace gpipe::internal {

// Returns the text `mine` of each of `members`, in the order of `members`. The
// texts are collected at the first member and sent back, both along a binomial
// tree (topology.h): a member exchanges messages with at most log2(n) + 1
// others, and no member returns before all have called. All texts together have
// at most 1 GiB. `members`: ranks of the world, ascending, this rank among
// them; the same on all. `tag`: the same on all members. `action`: what the
// call is for, in error texts; the same on all members.
//
// Throws PeerError if the world has failed, or if a member calls with another
// `action`. Threads: one call at a time for each `tag`.
std::vector<std::string> all_gather(Communicator& world,
                                    const std::vector<int>& members, int tag,
                                    const std::string& mine,
                                    const std::string& action);

// Does the same among all ranks of the world.
std::vector<std::string> all_gather(Communicator& world, int tag,
                                    const std::string& mine,
                                    const std::string& action);

}  // namespace gpipe::internal
