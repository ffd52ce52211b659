#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/resnet101_accuracy/plan.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

TEST(LearningRateTest, WarmsUpInALineAndFallsInSteps) {
  const LearningRate rate{1.6, 0.1, 4, {30, 60, 80}};
  EXPECT_DOUBLE_EQ(rate.at(0), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(2), 0.85);
  EXPECT_DOUBLE_EQ(rate.at(4), 1.6);
  EXPECT_DOUBLE_EQ(rate.at(29.9), 1.6);
  EXPECT_DOUBLE_EQ(rate.at(30), 0.16);
  EXPECT_DOUBLE_EQ(rate.at(89), 0.0016);
}

TEST(LearningRateTest, UsualMilestonesKeepTheirProportion) {
  EXPECT_THAT(usual_milestones(90), ElementsAre(30, 60, 80));
  EXPECT_THAT(usual_milestones(9), ElementsAre(3, 6, 8));
  EXPECT_THAT(usual_milestones(1), ElementsAre(1, 1, 1));
}

}  // namespace
}  // namespace gpipe::benchmarks
