// Public: small words between ranks, outside of the stream of tensors.
#pragma once

#include <string>
#include <vector>

#include "gpipe/distributed/world.h"

namespace gpipe {

// What each rank of the world gives, by rank, for a program's own use: all call
// it at the same point, with their part. `action`: what it is for, in error
// texts. PeerError. Threads: one at a time in a world.
std::vector<std::string> all_gather(World& world, const std::string& mine,
                                    const std::string& action = "all_gather()");

// ---- For the library. ----

// What each of `members` gives, by member, for all of them: by way of the first
// one, so that none returns before all have called. All call with the same
// members, in ascending order, and `tag`; `action` is for error texts.
// PeerError. Threads: one at a time for a tag.
std::vector<std::string> all_gather(World& world,
                                    const std::vector<int>& members, int tag,
                                    const std::string& mine,
                                    const std::string& action);

// Of all ranks of the world.
std::vector<std::string> all_gather(World& world, int tag,
                                    const std::string& mine,
                                    const std::string& action);

}  // namespace gpipe
