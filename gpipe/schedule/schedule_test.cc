#include "gpipe/schedule/schedule.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/order.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

// Returns the schedule as text: one line per rank, a blank after each action.
std::string ranks_text(const Schedule& schedule) {
  std::string result;
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) result += to_string(action) + " ";
    result += "\n";
  }
  return result;
}

bool is_forward(const Action& action) {
  return action.kind == ActionKind::kForward;
}

TEST(FillDrain, RunsAllForwardsThenBackwardsInReverse) {
  EXPECT_EQ(ranks_text(fill_drain(2, 3)),
            "0F0 0F1 0F2 0B2 0B1 0B0 \n"
            "1F0 1F1 1F2 1B2 1B1 1B0 \n");
}

TEST(FillDrain, RefusesNothingToDo) {
  EXPECT_THROW(fill_drain(0, 1), std::invalid_argument);
  EXPECT_THROW(fill_drain(1, 0), std::invalid_argument);
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
  try {
    clock_order(schedule);
    FAIL() << "accepted a backward before its forward";
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find("0B0"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace gpipe
