// The ranks that exchange heartbeats with each other.
#pragma once

#include <vector>

namespace gpipe::internal {

// Returns the ranks with which `rank` of `size` ranks exchanges heartbeats, in
// ascending order: those one and two places before and after it, in a circle.
// With up to 5 ranks these are all others. The relation is symmetric.
//
// At most 4 connections and threads per rank are enough to find any failure. If
// ranks die, each remaining piece of the circle has a rank beside a dead one,
// and passes the news on.
std::vector<int> heartbeat_peers(int rank, int size);

}  // namespace gpipe::internal
