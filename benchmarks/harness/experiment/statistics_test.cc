#include "benchmarks/harness/experiment/statistics.h"

#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

TEST(StatisticsTest, OfNothingIsZero) {
  EXPECT_EQ(mean({}), 0);
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(deviation({}), 0);
  EXPECT_EQ(deviation({5}), 0);
}

TEST(StatisticsTest, MatchesHandComputedValues) {
  EXPECT_DOUBLE_EQ(mean({2, 4, 9}), 5);
  EXPECT_DOUBLE_EQ(median({9, 2, 4}), 4);
  EXPECT_DOUBLE_EQ(median({9, 2, 4, 6}), 5);
  EXPECT_DOUBLE_EQ(deviation({1, 3, 5}), 2);
}

}  // namespace
}  // namespace gpipe::benchmarks
