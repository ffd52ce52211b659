#include "gpipe/runtime/pipeline/recent_plans.h"

#include <gtest/gtest.h>

#include <string>

namespace gpipe::internal {
namespace {

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
