#include "gpipe/schedule/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "gpipe/schedule/generators/interleaved.h"
#include "gpipe/schedule/generators/zero_bubble_v.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

TEST(RankOfStage, FollowsTheLoopOrTheV) {
  EXPECT_THAT(rank_of_stage(interleaved(3, 4, 2)),
              ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(rank_of_stage(zero_bubble_v(3, 4)),
              ElementsAre(0, 1, 2, 2, 1, 0));
}

TEST(RankOfStage, MarksStagesThatDoNotOccur) {
  const Schedule schedule = {{{}, {{2, ActionKind::kForward, 5}}}};
  EXPECT_THAT(rank_of_stage(schedule), ElementsAre(-1, -1, 1));
  EXPECT_EQ(num_stages(schedule), 3);
  EXPECT_EQ(num_microbatches(schedule), 6);
}

TEST(RankOfStage, IsEmptyWithoutActions) {
  EXPECT_THAT(rank_of_stage({{{}, {}}}), IsEmpty());
  EXPECT_EQ(num_stages({}), 0);
  EXPECT_EQ(num_microbatches({}), 0);
}

TEST(RankOfStage, RefusesAStageOnTwoRanks) {
  EXPECT_THAT(
      [] {
        rank_of_stage({{{{1, ActionKind::kForward, 0}},
                        {{1, ActionKind::kBackward, 0}}}});
      },
      ThrowsMessage<std::invalid_argument>(
          AllOf(HasSubstr("stage 1 is on rank 0"), HasSubstr("1B0"),
                HasSubstr("rank 1"))));
  EXPECT_THAT(
      [] {
        rank_of_stage({{{{-1, ActionKind::kForward, 0}}}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("-1F0")));
}

// The schedules here are not valid.
TEST(PlacementTest, NumbersBeyondWhichNobodyCanCountAreRefused) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const Schedule stage = {
      {{{0, ActionKind::kForward, 0}}, {{kMost, ActionKind::kForward, 0}}}};
  const Schedule microbatch = {{{{0, ActionKind::kForward, kMost}}}};
  const auto refused = [](const char* action) {
    return ThrowsMessage<std::invalid_argument>(HasSubstr(action));
  };
  EXPECT_THAT([&] { num_stages(stage); }, refused("2147483647F0 of rank 1"));
  EXPECT_THAT([&] { rank_of_stage(stage); }, refused("2147483647F0 of rank 1"));
  EXPECT_EQ(num_microbatches(stage), 1);
  EXPECT_THAT([&] { num_microbatches(microbatch); },
              refused("0F2147483647 of rank 0"));
  EXPECT_EQ(num_stages(microbatch), 1);
  EXPECT_THAT(rank_of_stage(microbatch), ElementsAre(0));

  constexpr int kLeast = std::numeric_limits<int>::min();
  EXPECT_EQ(num_stages({{{{kLeast, ActionKind::kForward, 0}}}}), 0);
  EXPECT_EQ(num_microbatches({{{{0, ActionKind::kForward, kLeast}}}}), 0);
}

// A list of so many stages would take 8 GB.
TEST(RankOfStage, RefusesStagesFarBeyondTheNumberOfActions) {
  const Schedule far = {{{{2000000000, ActionKind::kForward, 0}}}};
  EXPECT_EQ(num_stages(far), 2000000001);
  EXPECT_THAT([&] { rank_of_stage(far); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("1 actions has a stage 2000000000")));
  // One stage of many is accepted, as a part of a schedule.
  EXPECT_EQ(rank_of_stage({{{{99999, ActionKind::kForward, 0}}}}).size(),
            100000);
}

TEST(PlacementTest, StagesAreDealtOutInRoundsOrThereAndBack) {
  EXPECT_THAT(place_stages(6, 2, Placement::kLoop),
              ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(place_stages(6, 2, Placement::kV), ElementsAre(0, 1, 1, 0, 0, 1));
}

}  // namespace
}  // namespace gpipe
