// Which ranks exchange heartbeats, and along which tree texts travel.
//
// Thread-safe: all functions are pure.
#pragma once

#include <cstddef>
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

// The binomial tree along which texts are collected and spread. It has the
// positions 0 to count - 1, and its root is 0. The subtree of k has the
// positions from k on without a gap.

// Returns the parent of k > 0.
std::size_t tree_parent(std::size_t k);
// Returns the children of k in ascending order.
std::vector<std::size_t> tree_children(std::size_t k, std::size_t count);
// Returns the parent, if any, and the children of k: at most log2(count) + 1.
std::vector<int> tree_neighbours(int k, int count);

}  // namespace gpipe::internal
