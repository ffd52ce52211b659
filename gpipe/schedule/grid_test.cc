#include "gpipe/schedule/grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/schedule/text.h"

namespace gpipe {
namespace {

using ::testing::HasSubstr;

std::string grid_of(const char* csv) { return to_grid(parse_schedule(csv)); }

TEST(ToGrid, ShowsWhenEachRankDoesWhat) {
  EXPECT_EQ(to_grid(fill_drain(3, 2)),
            "tick    0   1   2   3   4   5   6   7\n"
            "rank 0  0F0 0F1 .   .   .   .   0B1 0B0\n"
            "rank 1  .   1F0 1F1 .   .   1B1 1B0 .\n"
            "rank 2  .   .   2F0 2F1 2B1 2B0 .   .\n");
}

TEST(ToGrid, MakesColumnsAsWideAsTheirCells) {
  EXPECT_EQ(grid_of("0F9,0F10\n1F9,1F10\n"),
            "tick    0   1    2\n"
            "rank 0  0F9 0F10 .\n"
            "rank 1  .   1F9  1F10\n");
}

TEST(ToGrid, BeginsABlockWhenTheNeedsOfAllItsActionsAreDone) {
  // 0F1 could start at tick 1, but 0B0 only at 3.
  EXPECT_EQ(grid_of("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1B0,1F1,1B1\n"),
            "tick    0   1   2   3    4    5   6\n"
            "rank 0  0F0 .   .   (0F1 0B0) .   0B1\n"
            "rank 1  .   1F0 1B0 .    1F1  1B1 .\n");
  // The same actions without the block.
  EXPECT_EQ(grid_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
            "tick    0   1   2   3   4   5\n"
            "rank 0  0F0 0F1 .   0B0 .   0B1\n"
            "rank 1  .   1F0 1B0 1F1 1B1 .\n");
}

TEST(ToGrid, LetsALateRecomputeWaitForTheGradient) {
  EXPECT_EQ(grid_of("0F0,(0R0;0B0)\n1F0,1B0\n"),
            "tick    0   1   2   3    4\n"
            "rank 0  0F0 .   .   (0R0 0B0)\n"
            "rank 1  .   1F0 1B0 .    .\n");
  EXPECT_EQ(grid_of("0F0,0R0,0B0\n1F0,1B0\n"),
            "tick    0   1   2   3\n"
            "rank 0  0F0 0R0 .   0B0\n"
            "rank 1  .   1F0 1B0 .\n");
}

TEST(ToGrid, ShowsCopiesToAndFromTheHost) {
  EXPECT_EQ(grid_of("0F0,0O0,0F1,0L0,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
            "tick    0   1   2   3   4   5\n"
            "rank 0  0F0 0O0 0F1 0L0 0B0 0B1\n"
            "rank 1  .   1F0 1B0 1F1 1B1 .\n");
}

TEST(ToGrid, MarksWhereRanksGetStuck) {
  EXPECT_EQ(grid_of("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n"),
            "tick    0   1    2    3\n"
            "rank 0  0F0 0B0? .    .\n"
            "rank 1  .   1F0  1F1? .\n"
            "rank 2  .   .    2F0  2F1?\n");
  // The mark is at the first action of a block, whichever of them has to wait.
  EXPECT_EQ(grid_of("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1\n"),
            "tick    0   1    2\n"
            "rank 0  0F0 0F1? .\n"
            "rank 1  .   1F0  1F1?\n");
}

TEST(ToGrid, ShowsWhatIsNoValidSchedule) {
  // A backward before its forward, a forward that occurs twice, a forward whose
  // previous stage is missing, and a block without an end.
  EXPECT_EQ(grid_of("0B0,0F0\n1F1,1F1\n3F0\n"),
            "tick    0    1\n"
            "rank 0  0B0? .\n"
            "rank 1  1F1  1F1\n"
            "rank 2  3F0  .\n");
  const Schedule open = {{{{-1, ActionKind::kForward, 0, true}}}};
  EXPECT_EQ(to_grid(open), "tick    0\nrank 0  (-1F0\n");
}

TEST(ToGrid, ShowsNothingToDo) {
  EXPECT_EQ(to_grid(Schedule()), "tick\n");
  EXPECT_EQ(grid_of("\n0F0\n"),
            "tick    0\n"
            "rank 0  .\n"
            "rank 1  0F0\n");
}

TEST(GridAround, ShowsAllThatIsSmall) {
  EXPECT_EQ(grid_around(fill_drain(8, 1), 0, 0), to_grid(fill_drain(8, 1)));
  EXPECT_EQ(grid_around(fill_drain(1, 8), 0, 15), to_grid(fill_drain(1, 8)));
}

TEST(GridAround, CutsToSomeTicksAndRanks) {
  // A part in the middle, and a part at the end.
  EXPECT_THAT(grid_around(fill_drain(1, 20), 0, 20),
              HasSubstr("\n(ranks 0 to 0 of 1, ticks 12 to 27 of 40)\n"));
  EXPECT_EQ(
      grid_around(fill_drain(1, 10), 0, 19),
      "tick    4   5   6   7   8   9   10  11  12  13  14  15  16  17  18  "
      "19\n"
      "rank 0  0F4 0F5 0F6 0F7 0F8 0F9 0B9 0B8 0B7 0B6 0B5 0B4 0B3 0B2 0B1 "
      "0B0\n"
      "(ranks 0 to 0 of 1, ticks 4 to 19 of 20)\n");
  // A part with the last 8 of 9 ranks.
  EXPECT_EQ(grid_around(parse_schedule("0F0\n1F0\n2F0\n3F0\n4F0\n5F0\n6F0\n"
                                       "7F0\n8F0\n"),
                        5, 0),
            "tick    0 1   2   3   4   5   6   7   8\n"
            "rank 1  . 1F0 .   .   .   .   .   .   .\n"
            "rank 2  . .   2F0 .   .   .   .   .   .\n"
            "rank 3  . .   .   3F0 .   .   .   .   .\n"
            "rank 4  . .   .   .   4F0 .   .   .   .\n"
            "rank 5  . .   .   .   .   5F0 .   .   .\n"
            "rank 6  . .   .   .   .   .   6F0 .   .\n"
            "rank 7  . .   .   .   .   .   .   7F0 .\n"
            "rank 8  . .   .   .   .   .   .   .   8F0\n"
            "(ranks 1 to 8 of 9, ticks 0 to 8 of 9)\n");
}

TEST(GridAround, ShowsWhereTheRankIsStuckForWhatComesLater) {
  std::string csv;
  for (int i = 0; i < 20; ++i) csv += "0F" + std::to_string(i) + ',';
  const Schedule schedule = parse_schedule(csv + "0W0,0I0\n");
  for (const std::size_t position : {20, 21}) {
    EXPECT_EQ(
        grid_around(schedule, 0, position),
        "tick    5   6   7   8   9   10   11   12   13   14   15   16   17  "
        " 18   19   20\n"
        "rank 0  0F5 0F6 0F7 0F8 0F9 0F10 0F11 0F12 0F13 0F14 0F15 0F16 "
        "0F17 0F18 0F19 0W0?\n"
        "(ranks 0 to 0 of 1, ticks 5 to 20 of 21)\n");
  }
}

}  // namespace
}  // namespace gpipe
