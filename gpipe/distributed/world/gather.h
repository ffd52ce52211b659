// Public: an exchange of short texts between ranks, apart from the tensors.
#pragma once

#include <string>
#include <vector>

#include "gpipe/distributed/world/world.h"

namespace gpipe {

// Returns the text `mine` of every rank of the world, by rank. For use by
// programs. All ranks call it at the same point.
// `action`: what the call is for, in error texts; the same on all ranks.
//
// Throws PeerError if the world has failed, or if a rank calls with another
// `action`. Threads: one call at a time in a world.
std::vector<std::string> all_gather(World& world, const std::string& mine,
                                    const std::string& action = "all_gather()");

// ---- For the library. ----

// Returns the text `mine` of each of `members`, in the order of `members`. The
// texts are collected at the first member and sent back, both along a binomial
// tree (tree.h): a member exchanges messages with at most log2(n) + 1 others,
// and no member returns before all have called. All texts together have at most
// 1 GiB. `members`: ranks of the world, ascending, this rank among them; the
// same on all. `tag`: the same on all members. `action`: what the call is for,
// in error texts; the same on all members.
//
// Throws PeerError if the world has failed, or if a member calls with another
// `action`. Threads: one call at a time for each `tag`.
std::vector<std::string> all_gather(World& world,
                                    const std::vector<int>& members, int tag,
                                    const std::string& mine,
                                    const std::string& action);

// Does the same among all ranks of the world.
std::vector<std::string> all_gather(World& world, int tag,
                                    const std::string& mine,
                                    const std::string& action);

}  // namespace gpipe
