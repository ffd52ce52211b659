#include "gpipe/distributed/world/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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
