// Exchanges of texts between ranks, apart from the tensors.
#pragma once

#include <string>
#include <vector>

#include "gpipe/distributed/world.h"

namespace gpipe {

// Returns the text `mine` of every rank of the world, by rank. All ranks call
// it at the same point, and none returns before all have the texts, so that all
// of them may throw what they find in these. All texts together have at most
// 1 GiB.
// `action`: what the call is for, in error texts; the same on all ranks.
//
// Throws PeerError if the world has failed, or if a rank calls with another
// `action`, and c10::ValueError on a rank that finds more than 1 GiB; the world
// has failed then. Threads: one call at a time in a world.
std::vector<std::string> all_gather(World& world, const std::string& mine,
                                    const std::string& action = "all_gather()");

// Returns the same on rank 0, for texts of any length. Returns nothing on the
// other ranks, which send their texts to rank 0 alone. All ranks call it at the
// same point, and none returns before all have called.
//
// Throws PeerError as all_gather() does. Threads: one call of either at a time
// in a world.
std::vector<std::string> gather(World& world, const std::string& mine,
                                const std::string& action = "gather()");

}  // namespace gpipe
