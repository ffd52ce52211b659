#include "gpipe/schedule/generators/breadth_first.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/generators/looped_bfs.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/validate.h"

namespace gpipe {
namespace {

TEST(BreadthFirstTest, IsGPipesWithOneStagePerRankAndLoopedWithRounds) {
  for (int m = 1; m <= 5; ++m) {
    EXPECT_EQ(to_csv(breadth_first({0, 1, 2}, m)), to_csv(fill_drain(3, m)));
    EXPECT_EQ(to_csv(breadth_first({0, 1, 2, 0, 1, 2}, m)),
              to_csv(looped_bfs(3, m, 2)));
  }
}

TEST(BreadthFirstTest, TakesAnyPlacement) {
  EXPECT_EQ(to_csv(breadth_first({0, 1, 1, 0}, 2)),
            "0F0,0F1,3F0,3F1,3B1,3B0,0B1,0B0\n"
            "1F0,1F1,2F0,2F1,2B1,2B0,1B1,1B0\n");
  validate(breadth_first({2, 0, 1, 1}, 4));
}

TEST(BreadthFirstTest, RefusesRanksWithoutStages) {
  EXPECT_THROW(breadth_first({0, 2}, 1), std::invalid_argument);
  EXPECT_THROW(breadth_first({1, 1}, 1), std::invalid_argument);
  EXPECT_THROW(breadth_first({-1}, 1), std::invalid_argument);
  EXPECT_THROW(breadth_first({}, 1), std::invalid_argument);
  EXPECT_THROW(breadth_first({0}, 0), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe
