#include "gpipe/simulation/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/simulation/simulate.h"

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const Action kForward0 = {0, ActionKind::kForward, 0};
const Action kForward1 = {0, ActionKind::kForward, 1};

TEST(TimelineTest, IdleTimeIsOutsideOfAllSpans) {
  // The first three spans overlap and cover the time from 1 to 6.
  const Timeline timeline =
      timeline_of({{{kForward0, 1, 5},
                    {kForward1, 2, 3},
                    {{0, ActionKind::kForward, 2}, 4, 6},
                    {{0, ActionKind::kBackward, 2}, 8, 9}},
                   {{{1, ActionKind::kForward, 0}, 0, 10}},
                   {}});
  EXPECT_EQ(timeline.makespan, 10);
  EXPECT_THAT(timeline.idle, ElementsAre(4, 0, 10));
  EXPECT_DOUBLE_EQ(timeline.bubble_fraction, 14.0 / 30);
  EXPECT_DOUBLE_EQ(timeline.bubble_ratio, 14.0 / 16);
}

// The bubbles are (p - 1) / (m + p - 1) and (p - 1) / m.
TEST(TimelineTest, BubblesAreThoseOfThePapers) {
  for (const int p : {1, 2, 8}) {
    for (const int m : {1, 4, 32}) {
      Costs costs;
      costs.forward.assign(p, 1);
      costs.backward.assign(p, 2);
      const Timeline timeline = simulate(fill_drain(p, m), costs);
      EXPECT_DOUBLE_EQ(timeline.bubble_fraction, (p - 1.0) / (m + p - 1));
      EXPECT_DOUBLE_EQ(timeline.bubble_ratio, (p - 1.0) / m);
    }
  }
}

TEST(TimelineTest, CountsWhatIsInFlight) {
  const Timeline timeline =
      timeline_of({{{kForward0, 0, 1},
                    {kForward1, 1, 2},
                    {{0, ActionKind::kBackwardInput, 0}, 2, 3},
                    {{0, ActionKind::kForward, 2}, 3, 4},
                    {{0, ActionKind::kBackwardWeight, 0}, 4, 5},
                    {{0, ActionKind::kForward, 3}, 5, 6}}});
  EXPECT_THAT(timeline.peak_in_flight, ElementsAre(3));
}

TEST(TimelineTest, RefusesSpansOfHostCopies) {
  EXPECT_THAT(
      [] {
        timeline_of({{{{0, ActionKind::kOffload, 3}, 0, 1}}});
      },
      ThrowsMessage<std::invalid_argument>(
          "the span of 0O3 on rank 0 is a copy to or from the host: spans are "
          "of computation; put it into host_copies"));
}

TEST(TimelineTest, NamesASpanThatCannotBe) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto refuse = [](double start, double end) {
    EXPECT_THAT(
        [&] {
          timeline_of({{}, {{kForward0, 1, 2}, {kForward1, start, end}}});
        },
        ThrowsMessage<std::invalid_argument>(
            AllOf(HasSubstr("0F1 on rank 1"), HasSubstr("after a start at 1"))))
        << start << " " << end;
  };
  refuse(3, 2);
  refuse(0.5, 3);
  refuse(-1, 3);
  refuse(kNaN, 3);
  refuse(3, kNaN);
  refuse(3, kInfinity);
}

}  // namespace
}  // namespace gpipe
