#include "gpipe/distributed/world/topology.h"

#include <set>

namespace gpipe::internal {

std::vector<int> heartbeat_peers(int rank, int size) {
  std::set<int> peers;
  for (const int distance : {1, 2}) {
    peers.insert((rank + distance) % size);
    peers.insert((rank + (size - 1) * distance) % size);
  }
  peers.erase(rank);
  return {peers.begin(), peers.end()};
}

// The parent of a binary number lacks its lowest 1.
std::size_t tree_parent(std::size_t k) { return k & (k - 1); }

std::vector<std::size_t> tree_children(std::size_t k, std::size_t count) {
  std::vector<std::size_t> children;
  for (std::size_t bit = 1; k + bit < count && (k & bit) == 0; bit <<= 1) {
    children.push_back(k + bit);
  }
  return children;
}

std::vector<int> tree_neighbours(int k, int count) {
  std::vector<int> neighbours;
  if (k > 0) neighbours.push_back(static_cast<int>(tree_parent(k)));
  for (const std::size_t child : tree_children(k, count)) {
    neighbours.push_back(static_cast<int>(child));
  }
  return neighbours;
}

}  // namespace gpipe::internal
