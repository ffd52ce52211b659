#include "gpipe/schedule/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <set>
#include <stdexcept>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/text.h"
#include "gpipe/schedule/transform.h"
#include "gpipe/schedule/v_shape.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

bool is_forward(const Action& action) {
  return action.kind == ActionKind::kForward;
}

TEST(FillDrain, RunsAllForwardsThenBackwardsInReverse) {
  EXPECT_EQ(to_csv(fill_drain(2, 3)),
            "0F0,0F1,0F2,0B2,0B1,0B0\n"
            "1F0,1F1,1F2,1B2,1B1,1B0\n");
}

TEST(ClockOrder, PutsForwardOfMicrobatchIOnStageJAtClockIPlusJ) {
  const auto forward = select(fill_drain(3, 4), is_forward);
  const auto order = clock_order(forward);
  for (int j = 0; j < 3; ++j) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(order[j][i], (i + j) * 3 + j);
  }
}

TEST(ClockOrder, TakesMissingForwardsAsDone) {
  const auto backward =
      select(fill_drain(2, 2), [](const Action& a) { return !is_forward(a); });
  const auto order = clock_order(backward);
  // 1B1 is at tick 0, 0B1 and 1B0 at tick 1, 0B0 at tick 2.
  EXPECT_EQ(order[1], (std::vector<int64_t>{0 * 2 + 1, 1 * 2 + 1}));
  EXPECT_EQ(order[0], (std::vector<int64_t>{1 * 2 + 0, 2 * 2 + 0}));
}

TEST(ClockOrder, LastsAsLongAsTheClosedForm) {
  // The makespan is m + n - 1 forwards and as many backwards, one tick each.
  for (int n = 1; n <= 5; ++n) {
    for (int m = 1; m <= 7; ++m) {
      const auto order = clock_order(fill_drain(n, m));
      EXPECT_EQ(order[0].back() / n + 1, 2 * (m + n - 1)) << n << " " << m;
    }
  }
}

TEST(ClockOrder, NamesAnActionThatCanNeverStart) {
  Schedule schedule;
  schedule.ranks = {
      {{0, ActionKind::kBackward, 0}, {0, ActionKind::kForward, 0}}};
  EXPECT_THAT([&] { clock_order(schedule); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("0B0")));
}

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

namespace gpipe::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ActionIndexTest, NumbersAreDenseAndDifferent) {
  const Schedule schedule = fill_drain(3, 5);
  const ActionIndex index(schedule.ranks);
  EXPECT_EQ(index.stages(), 3);
  EXPECT_EQ(index.size(), 3 * 5 * 2);
  std::set<std::size_t> numbers;
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) numbers.insert(index.find(action));
  }
  EXPECT_EQ(numbers.size(), 3 * 5 * 2);
  EXPECT_EQ(*numbers.rbegin(), 3 * 5 * 2 - 1);
}

TEST(ActionIndexTest, WhatCannotBeThereHasNone) {
  const ActionIndex index(fill_drain(3, 5).ranks);
  EXPECT_EQ(index.find({-1, ActionKind::kForward, 0}), ActionIndex::kNone);
  EXPECT_EQ(index.find({3, ActionKind::kBackward, 0}), ActionIndex::kNone);
  EXPECT_EQ(index.find({0, ActionKind::kRecompute, 0}), ActionIndex::kNone);
  EXPECT_EQ(index.find({1, ActionKind::kForward, -1}), ActionIndex::kNone);
  EXPECT_EQ(index.find({2, ActionKind::kBackward, 5}), ActionIndex::kNone);
}

TEST(ActionIndexTest, APartOfAScheduleKeepsItsNumbers) {
  const ActionIndex index(Schedule{{{{63, ActionKind::kBackward, 511}}}}.ranks);
  EXPECT_EQ(index.stages(), 64);
  EXPECT_LT(index.find({63, ActionKind::kBackward, 511}), index.size());
}

TEST(ActionIndexTest, NumbersWithGapsAreRefused) {
  constexpr int kMost = std::numeric_limits<int>::max();
  EXPECT_THAT(
      [] {
        ActionIndex(Schedule{{{{kMost, ActionKind::kForward, kMost}}}}.ranks);
      },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("1 actions has a stage 2147483647")));
}

}  // namespace
}  // namespace gpipe::internal
