#include "gpipe/distributed/world/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(HeartbeatPeersTest, AreAllOthersOfFew) {
  EXPECT_THAT(heartbeat_peers(0, 1), IsEmpty());
  EXPECT_THAT(heartbeat_peers(1, 2), ElementsAre(0));
  EXPECT_THAT(heartbeat_peers(1, 3), ElementsAre(0, 2));
  EXPECT_THAT(heartbeat_peers(3, 5), ElementsAre(0, 1, 2, 4));
}

TEST(HeartbeatPeersTest, AreAtMostFourAndSymmetric) {
  for (const int size : {6, 7, 8, 128}) {
    for (int rank = 0; rank < size; ++rank) {
      const auto peers = heartbeat_peers(rank, size);
      EXPECT_EQ(peers.size(), 4u);
      for (const int peer : peers) {
        const auto theirs = heartbeat_peers(peer, size);
        EXPECT_TRUE(std::ranges::count(theirs, rank))
            << rank << " and " << peer << " of " << size;
      }
    }
  }
}

// Any ranks that die have living neighbours, from which each living rank hears
// along living ranks.
TEST(HeartbeatPeersTest, EachLivingRankHearsOfTheDead) {
  constexpr int kSize = 9;
  for (int dead = 1; dead < (1 << kSize) - 1; ++dead) {
    const auto is_dead = [&](int rank) { return dead >> rank & 1; };
    std::vector<int> informed;
    for (int rank = 0; rank < kSize; ++rank) {
      if (is_dead(rank)) continue;
      const auto peers = heartbeat_peers(rank, kSize);
      if (std::ranges::any_of(peers, is_dead)) {
        informed.push_back(rank);
      }
    }
    for (std::size_t k = 0; k < informed.size(); ++k) {
      for (const int peer : heartbeat_peers(informed[k], kSize)) {
        if (!is_dead(peer) && !std::ranges::count(informed, peer)) {
          informed.push_back(peer);
        }
      }
    }
    int living = 0;
    for (int rank = 0; rank < kSize; ++rank) living += !is_dead(rank);
    EXPECT_EQ(static_cast<int>(informed.size()), living) << dead;
  }
}

// Adds the subtree of k, parents before children, in ascending order.
void walk(std::size_t k, std::size_t count, std::vector<std::size_t>* order) {
  order->push_back(k);
  for (const std::size_t child : tree_children(k, count)) {
    EXPECT_EQ(tree_parent(child), k);
    walk(child, count, order);
  }
}

TEST(TreeTest, VisitsAllPositionsInOrder) {
  for (std::size_t count = 1; count < 70; ++count) {
    std::vector<std::size_t> order;
    walk(0, count, &order);
    ASSERT_EQ(order.size(), count);
    for (std::size_t k = 0; k < count; ++k) EXPECT_EQ(order[k], k);
  }
}

TEST(TreeTest, HasFewNeighbours) {
  EXPECT_THAT(tree_neighbours(0, 1), IsEmpty());
  EXPECT_THAT(tree_neighbours(0, 6), ElementsAre(1, 2, 4));
  EXPECT_THAT(tree_neighbours(4, 6), ElementsAre(0, 5));
  EXPECT_THAT(tree_neighbours(0, 128), ElementsAre(1, 2, 4, 8, 16, 32, 64));
  EXPECT_THAT(tree_neighbours(127, 128), ElementsAre(126));
}

}  // namespace
}  // namespace gpipe::internal
