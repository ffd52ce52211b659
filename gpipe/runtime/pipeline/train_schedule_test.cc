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

}  // namespace
}  // namespace gpipe::internal
