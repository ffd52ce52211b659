// A check that all ranks were given the same options.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gpipe/distributed/world/communicator.h"

namespace gpipe::internal {

// A list of (name, value) pairs that must be equal on all ranks, such as
// {"balance", "[2, 2]"}. Only the first pair that differs is reported, so pairs
// that explain others come first.
using Terms = std::vector<std::pair<std::string, std::string>>;

// Blocks until all ranks have called, and compares their `terms`. All ranks
// call with the same `tag` (see Tags).
//
// Throws PeerError on every rank if a term differs; it names the first such
// term, the rank and both values. Throws PeerError if the world has failed.
//
// Threads: one call at a time for each `tag`.
void agree(Communicator& world, int tag, const Terms& terms);

}  // namespace gpipe::internal
