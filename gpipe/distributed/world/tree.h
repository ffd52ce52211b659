// The binomial tree along which texts are collected and spread.
#pragma once

#include <cstddef>
#include <vector>

namespace gpipe::internal {

// The tree has the positions 0 to count - 1, and its root is 0. The subtree of
// k has the positions from k on without a gap.

// Returns the parent of k > 0.
std::size_t tree_parent(std::size_t k);
// Returns the children of k in ascending order.
std::vector<std::size_t> tree_children(std::size_t k, std::size_t count);
// Returns the parent, if any, and the children of k: at most log2(count) + 1.
std::vector<int> tree_neighbours(int k, int count);

}  // namespace gpipe::internal
