#include "training/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/resnet101_accuracy/plan.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

TEST(LearningRateTest, IsAScheduleInSteps) {
  const LearningRate rate{1.6, 0.1, 4, {30, 60, 80}};
  EXPECT_EQ(rate.schedule(100),
            "warmup:400:0.0625,milestones:3000:6000:8000:0.1");
  const LearningRateSchedule schedule(rate.schedule(100));
  const auto at = [&](double epoch) {
    return rate.base * schedule.factor(static_cast<int64_t>(epoch * 100));
  };
  EXPECT_DOUBLE_EQ(at(0), 0.1);
  EXPECT_DOUBLE_EQ(at(2), 0.85);
  EXPECT_DOUBLE_EQ(at(4), 1.6);
  EXPECT_DOUBLE_EQ(at(29.9), 1.6);
  EXPECT_DOUBLE_EQ(at(30), 0.16);
  EXPECT_DOUBLE_EQ(at(89), 0.0016);
}

TEST(LearningRateTest, MayHaveNeitherWarmUpNorMilestones) {
  EXPECT_EQ((LearningRate{1, 1, 0, {}}.schedule(100)), "constant");
  EXPECT_EQ((LearningRate{1, 0.5, 0.25, {}}.schedule(10)),
            "warmup:3:0.5,constant");
}

TEST(LearningRateTest, UsualMilestonesKeepTheirProportion) {
  EXPECT_THAT(usual_milestones(90), ElementsAre(30, 60, 80));
  EXPECT_THAT(usual_milestones(9), ElementsAre(3, 6, 8));
  EXPECT_THAT(usual_milestones(1), ElementsAre(1, 1, 1));
}

}  // namespace
}  // namespace gpipe::benchmarks
