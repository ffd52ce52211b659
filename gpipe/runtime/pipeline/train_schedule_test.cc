#include "gpipe/runtime/pipeline/train_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/generators/forward_only.h"
#include "gpipe/schedule/generators/zero_bubble_h.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::Pair;

TEST(HasBackward, KnowsWholeBackwardsAndThoseInTwoParts) {
  EXPECT_TRUE(has_backward(fill_drain(2, 2)));
  EXPECT_TRUE(has_backward(zero_bubble_h1(2, 2)));
  EXPECT_FALSE(has_backward(forward_only(2, 2)));
}

TEST(CellsWith, ReturnsStageAndMicrobatch) {
  const Schedule schedule = {{{{0, ActionKind::kForward, 0},
                               {1, ActionKind::kRecompute, 3},
                               {0, ActionKind::kRecompute, 2}}}};
  EXPECT_THAT(cells_with(schedule, ActionKind::kRecompute),
              ElementsAre(Pair(0, 2), Pair(1, 3)));
}

TEST(CheckSchedule, ReturnsTheRankOfEachStageIfTheSizesFit) {
  EXPECT_THAT(check_schedule(fill_drain(3, 2), 3, 3, "Options"),
              ElementsAre(0, 1, 2));
  EXPECT_EQ(error_of([] { check_schedule(fill_drain(3, 2), 4, 2, "Options"); }),
            "c10::ValueError: the schedule has 3 stages on 3 ranks, but the "
            "pipeline has 4 partitions on 2 ranks; make a schedule of these "
            "sizes (see gpipe/schedule.h), or the pipeline with "
            "Options::stages_per_rank");
  EXPECT_THROW(check_schedule({{{}}}, 1, 1, "Options"), std::invalid_argument);
}

int recomputes(const Schedule& schedule) {
  int count = 0;
  for (const auto& rank : schedule.ranks) {
    for (const Action& each : rank)
      count += each.kind == ActionKind::kRecompute;
  }
  return count;
}

TEST(WithCheckpoint, AddsTheRecomputesOfTheMode) {
  const Schedule schedule = fill_drain(2, 3);
  EXPECT_EQ(recomputes(with_checkpoint(schedule, Checkpoint::kAlways)), 6);
  EXPECT_EQ(recomputes(with_checkpoint(schedule, Checkpoint::kExceptLast)), 4);
  EXPECT_EQ(with_checkpoint(schedule, Checkpoint::kNever).ranks,
            schedule.ranks);
  const Schedule own = with_checkpoint(schedule, Checkpoint::kExceptLast);
  EXPECT_EQ(with_checkpoint(own, Checkpoint::kAlways).ranks, own.ranks);
  const Schedule without = forward_only(2, 3);
  EXPECT_EQ(with_checkpoint(without, Checkpoint::kAlways).ranks, without.ranks);
}

Schedule schedule_of(int microbatch) {
  return {{{{0, ActionKind::kForward, microbatch}}}};
}

// Makes the text of a number, and counts.
struct Maker {
  RecentPlans<std::string> plans;
  int made = 0;
  const std::string& get(int microbatch,
                         Checkpoint checkpoint = Checkpoint::kNever) {
    return plans.get(schedule_of(microbatch), checkpoint, [&] {
      return std::to_string(microbatch) + " " + std::to_string(++made);
    });
  }
};

TEST(RecentPlans, MakesEachScheduleAndModeOnce) {
  Maker maker;
  const std::string& first = maker.get(5);
  EXPECT_EQ(first, "5 1");
  EXPECT_EQ(maker.get(5, Checkpoint::kAlways), "5 2");
  EXPECT_EQ(maker.get(6), "6 3");
  EXPECT_EQ(&maker.get(5), &first);
  EXPECT_EQ(maker.get(5, Checkpoint::kAlways), "5 2");
  EXPECT_EQ(maker.made, 3);
}

TEST(RecentPlans, ABlockIsAnotherSchedule) {
  RecentPlans<int> plans;
  Schedule fused = schedule_of(0);
  fused.ranks[0][0].fused_with_next = true;
  EXPECT_EQ(plans.get(schedule_of(0), Checkpoint::kNever, [] { return 1; }), 1);
  EXPECT_EQ(plans.get(fused, Checkpoint::kNever, [] { return 2; }), 2);
}

TEST(RecentPlans, KeepsTheEightThatWereMadeLast) {
  Maker maker;
  for (int k = 0; k < 9; ++k) maker.get(k);
  EXPECT_EQ(maker.made, 9);
  for (int k = 1; k < 9; ++k) maker.get(k);
  EXPECT_EQ(maker.made, 9);
  EXPECT_EQ(maker.get(0), "0 10");
  EXPECT_EQ(maker.get(1), "1 11");  // was the oldest
}

TEST(RecentPlans, KeepsNothingOfAMakerThatThrows) {
  RecentPlans<int> plans;
  EXPECT_THROW(
      plans.get(schedule_of(0), Checkpoint::kNever, []() -> int { throw 42; }),
      int);
  EXPECT_EQ(plans.get(schedule_of(0), Checkpoint::kNever, [] { return 7; }), 7);
}

}  // namespace
}  // namespace gpipe::internal
