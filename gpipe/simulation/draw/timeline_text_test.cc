#include "gpipe/simulation/draw/timeline_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/simulation/simulate.h"
#include "gpipe/simulation/timeline_testing.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(TimelineTextTest, IsToScale) {
  EXPECT_EQ(to_text(simulate(fill_drain(2, 2), costs_of(2)), 36),
            "        0                                9 s\n"
            "rank 0 |0F0-0F1-............0B1-----0B0-----| idle 33.3 %\n"
            "rank 1 |....1F0-1F1-1B1-----1B0-----........| idle 33.3 %\n");
}

TEST(TimelineTextTest, WhereThereIsNoRoomALetterStandsForTheName) {
  EXPECT_EQ(to_text(simulate(fill_drain(2, 2), costs_of(2)), 9),
            "        0     9 s\n"
            "rank 0 |FF...B-B-| idle 33.3 %\n"
            "rank 1 |.FFB-B-..| idle 33.3 %\n");
  EXPECT_EQ(to_text(simulate(fill_drain(1, 1), costs_of(1)), 2),
            "        0 3 s\n"
            "rank 0 |FB| idle 0.0 %\n");
}

TEST(TimelineTextTest, AnOverlappedPairIsOneBox) {
  const Schedule schedule = {
      {{{0, ActionKind::kForward, 0},
        {0, ActionKind::kForward, 1, /*fused_with_next=*/true},
        {0, ActionKind::kBackward, 0},
        {0, ActionKind::kBackward, 1}}}};
  EXPECT_EQ(to_text(simulate(schedule, costs_of(1)), 18),
            "        0              6 s\n"
            "rank 0 |F--0F1&0B0--0B1---| idle 0.0 %\n");
}

TEST(TimelineTextTest, NumbersOfRanksAreAligned) {
  Timeline timeline = timeline_of(std::vector<std::vector<Span>>(11));
  timeline.ranks[10] = {{{0, ActionKind::kForward, 0}, 0, 1}};
  const std::string text = to_text(timeline_of(timeline.ranks), 4);
  EXPECT_THAT(text, HasSubstr("rank  9 |....| idle 100.0 %\n"));
  EXPECT_THAT(text, HasSubstr("rank 10 |0F0-| idle 0.0 %\n"));
}

TEST(TimelineTextTest, RanksOfOtherProcessesKeepTheirNumbers) {
  Timeline timeline = second_of_two();
  EXPECT_EQ(to_text(timeline, 8),
            "        0    4 s\n"
            "rank 1 |.......F| idle 87.5 %\n");
  timeline.first_rank = 10;
  EXPECT_EQ(to_text(timeline, 8),
            "         0    4 s\n"
            "rank 10 |.......F| idle 87.5 %\n");
}

TEST(TimelineTextTest, NothingIsEmpty) {
  EXPECT_EQ(to_text(timeline_of({{}, {}}), 6),
            "        0 0 us\n"
            "rank 0 |......|\n"
            "rank 1 |......|\n");
}

TEST(TimelineTextTest, RefusesToHaveNoColumns) {
  EXPECT_THAT([] { to_text(timeline_of({{}}), 0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("0 columns")));
}

}  // namespace
}  // namespace gpipe
