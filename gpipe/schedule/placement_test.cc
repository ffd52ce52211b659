#include "gpipe/schedule/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/interleaved.h"
#include "gpipe/schedule/zero_bubble_v.h"

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
  const Schedule schedule = {{{}, {{2, Kind::kForward, 5}}}};
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
        rank_of_stage({{{{1, Kind::kForward, 0}}, {{1, Kind::kBackward, 0}}}});
      },
      ThrowsMessage<std::invalid_argument>(
          AllOf(HasSubstr("stage 1 is on rank 0"), HasSubstr("1B0"),
                HasSubstr("rank 1"))));
  EXPECT_THAT(
      [] {
        rank_of_stage({{{{-1, Kind::kForward, 0}}}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("-1F0")));
}

TEST(PlacementTest, StagesAreDealtOutInRoundsOrThereAndBack) {
  EXPECT_THAT(place_stages(6, 2, Placement::kLoop),
              ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(place_stages(6, 2, Placement::kV), ElementsAre(0, 1, 1, 0, 0, 1));
}

}  // namespace
}  // namespace gpipe
