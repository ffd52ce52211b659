#include "gpipe/schedule/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/one_forward_one_backward.h"
#include "gpipe/schedule/transform.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr ActionKind kForward = ActionKind::kForward;
constexpr ActionKind kBackward = ActionKind::kBackward;

// Parses and writes `csv`: the result has no empty cells, and line ends "\n".
std::string reread(const std::string& csv) {
  return to_csv(parse_schedule(csv));
}

TEST(ToCsv, WritesARankPerLine) {
  EXPECT_EQ(to_csv(fill_drain(2, 2)), "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n");
}

TEST(ToCsv, WritesAllKinds) {
  const Schedule schedule = {{{{10, ActionKind::kForward, 11},
                               {0, ActionKind::kBackward, 1},
                               {0, ActionKind::kBackwardInput, 2},
                               {0, ActionKind::kBackwardWeight, 3},
                               {0, ActionKind::kRecompute, 4},
                               {12, ActionKind::kOffload, 5},
                               {0, ActionKind::kReload, 16}}}};
  EXPECT_EQ(to_csv(schedule), "10F11,0B1,0I2,0W3,0R4,12O5,0L16\n");
}

TEST(ToCsv, WritesBlocksAndNamesOverlappedPairs) {
  const Schedule schedule = {{{{0, ActionKind::kForward, 8, true},
                               {7, ActionKind::kBackward, 0},
                               {2, ActionKind::kRecompute, 0, true},
                               {2, ActionKind::kBackward, 0},
                               {7, ActionKind::kBackwardInput, 1, true},
                               {0, ActionKind::kForward, 9},
                               {2, ActionKind::kRecompute, 1, true},
                               {2, ActionKind::kBackwardInput, 1}}}};
  EXPECT_EQ(to_csv(schedule),
            "(0F8;7B0)OVERLAP_F_B,(2R0;2B0),(7I1;0F9)OVERLAP_F_B,(2R1;2I1)\n");
}

TEST(ToCsv, WritesRanksWithNothingToDo) {
  EXPECT_EQ(to_csv(Schedule{{{}, {{0, kForward, 0}}, {}}}), "\n0F0\n\n");
}

TEST(ParseSchedule, GivesBackAnySchedule) {
  std::mt19937 random(0);
  const auto below = [&](int n) {
    return std::uniform_int_distribution<int>(0, n - 1)(random);
  };
  const auto number = [&] {
    return below(20) == 0 ? std::numeric_limits<int>::max() : below(200);
  };
  int blocks = 0;
  for (int k = 0; k < 2000; ++k) {
    Schedule schedule;
    schedule.ranks.resize(1 + below(4));
    for (auto& actions : schedule.ranks) {
      for (int left = below(8); left > 0; --left) {
        const ActionKind kind = static_cast<ActionKind>(below(7));
        const bool fused_with_next = left > 1 && below(3) == 0;
        actions.push_back({number(), kind, number(), fused_with_next});
        blocks += fused_with_next;
      }
    }
    const std::string csv = to_csv(schedule);
    EXPECT_EQ(parse_schedule(csv).ranks, schedule.ranks) << csv;
  }
  EXPECT_GT(blocks, 1000);
}

TEST(ParseSchedule, MakesBlocksOfParentheses) {
  const Schedule schedule = parse_schedule("(0F8;7B0)OVERLAP_F_B,(2R0;2B0)");
  EXPECT_THAT(schedule.ranks, ElementsAre(ElementsAre(
                                  Action{0, ActionKind::kForward, 8, true},
                                  Action{7, ActionKind::kBackward, 0, false},
                                  Action{2, ActionKind::kRecompute, 0, true},
                                  Action{2, ActionKind::kBackward, 0, false})));
}

TEST(ParseSchedule, DropsIdleCellsAndBlanks) {
  const auto actions =
      ElementsAre(Action{0, kForward, 0}, Action{0, kBackward, 0});
  for (const char* csv :
       {"0F0,0B0", "0F0,0B0\n", "0F0,0B0\r\n", "0F0,0B0,", "0F0,,,0B0,,\r\n",
        ",,0F0,0B0", " 0F0 ,\t0B0 ,  , \n", "00F00,00B00"}) {
    EXPECT_THAT(parse_schedule(csv).ranks, ElementsAre(actions)) << csv;
  }
  EXPECT_EQ(reread("( 0F1 ;\t1B0 )OVERLAP_F_B"), "(0F1;1B0)OVERLAP_F_B\n");
}

TEST(ParseSchedule, TakesALineWithoutActionsAsARankWithNothingToDo) {
  EXPECT_THAT(parse_schedule("\n").ranks, ElementsAre(IsEmpty()));
  EXPECT_THAT(parse_schedule("\r\n,, ,").ranks,
              ElementsAre(IsEmpty(), IsEmpty()));
  EXPECT_EQ(reread("\n0F0\n\n"), "\n0F0\n\n");
}

// The following tests read the output of torch 2.11 for 2 ranks.

TEST(ParseSchedule, ReadsInterleaved1F1BOfTorch) {
  EXPECT_EQ(
      reread("0F0,0F1,2F0,2F1,,,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,,2B2,,2B3"
             ",,0B2,,0B3\r\n"
             ",1F0,1F1,,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,,"
             "1B2,,1B3\r\n"),
      "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
      "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
}

TEST(ParseSchedule, ReadsZeroBubbleVOfTorch) {
  EXPECT_EQ(reread("0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,"
                   "0I1,0W1,0I2,0W2\r\n"
                   ",1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,"
                   "1I2,1W1,2W2,1W2\r\n"),
            "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,3F2,3I2,3W2,0I1,0W1,"
            "0I2,0W2\n"
            "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1I1,2I2,1I2,1W1,"
            "2W2,1W2\n");
}

TEST(ParseSchedule, ReadsDualPipeVOfTorch) {
  const std::string rank0 =
      "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,"
      "3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,0I3,0W3";
  const std::string rank1 =
      "1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,"
      "(2F3;1B1)OVERLAP_F_B,2B2,1B2,2I3,1I3,2W3,1W3";
  EXPECT_EQ(reread(rank0 + "\r\n" + rank1 + "\r\n"),
            rank0 + "\n" + rank1 + "\n");
}

TEST(ParseSchedule, Reads1F1BOfTorchButForItsReductions) {
  // Rank 1 has forwards 1 to 3 but backwards 0 to 2. validate() reports that.
  const std::string rank0 = "0F0,0F1,0B0,0F2,0B1,0B2";
  const std::string rank1 = "1F1,1B0,1F2,1B1,1F3,1B2";
  EXPECT_EQ(reread(rank0 + "\r\n" + rank1 + "\r\n"),
            rank0 + "\n" + rank1 + "\n");
  const std::string whole =
      rank0 + ",0REDUCE_GRAD\r\n" + rank1 + ",1REDUCE_GRAD\r\n";
  EXPECT_THAT([&] { parse_schedule(whole); },
              ThrowsMessage<std::invalid_argument>(
                  "line 1, column 26 of a schedule: expected F, B, I, W, R, O "
                  "or L (a schedule lists only computation, and communication "
                  "follows from it: leave this cell out); found "
                  "'REDUCE_GRAD'"));
}

struct Refused {
  std::string csv;
  int line, column;
  std::string expected, found;
};

TEST(ParseSchedule, SaysWhereAndWhatItExpected) {
  const std::string stage = "a stage, a number from 0";
  const std::string microbatch = "a micro-batch, a number from 0";
  const std::string kind = "F, B, I, W, R, O or L";
  const std::string no_computation =
      kind +
      " (a schedule lists only computation, and communication follows from "
      "it: leave this cell out)";
  const std::string next = "a comma or the end of the line";
  const std::string end = "the end of the line";
  const std::vector<Refused> cases = {
      {"", 1, 1, "the actions of rank 0", "the end of the text"},
      // Numbers.
      {"-1F0", 1, 1, stage, "'-'"},
      {"0F-1", 1, 3, microbatch, "'-'"},
      {"+1F0", 1, 1, stage, "'+'"},
      {"F0", 1, 1, stage, "'F'"},
      {"0F0,0F", 1, 7, microbatch, end},
      {"2147483648F0", 1, 1, "a stage, a number of at most 2147483647",
       "'2147483648'"},
      {"0F99999999999999999999999", 1, 3,
       "a micro-batch, a number of at most 2147483647",
       "'99999999999999999999'"},
      // Kinds.
      {"0X0", 1, 2, kind, "'X'"},
      {"0f0", 1, 2, kind, "'f'"},
      {"0OL0", 1, 2, kind, "'OL'"},
      {"0FB0", 1, 2, kind, "'FB'"},
      {"0", 1, 2, kind, end},
      {"0 F0", 1, 2, kind, "the byte 0x20"},
      {"0F0,1OVERLAP_F_B", 1, 6, kind, "'OVERLAP_F_B'"},
      // Actions that are not computation.
      {"0F0\n0F1,0SEND_F0", 2, 6, no_computation, "'SEND_F'"},
      {"1RECV_F0", 1, 2, no_computation, "'RECV_F'"},
      {"1SEND_B0", 1, 2, no_computation, "'SEND_B'"},
      {"1RECV_B0", 1, 2, no_computation, "'RECV_B'"},
      {"0UNSHARD", 1, 2, no_computation, "'UNSHARD'"},
      {"0RESHARD", 1, 2, no_computation, "'RESHARD'"},
      // Cells.
      {"0F0 0F1", 1, 5, next, "'0'"},
      {"0F0;0F1", 1, 4, next, "';'"},
      {"0F0\r0F1", 1, 4, next, "the byte 0xd"},
      {"0F0\r\n\n 0F1,?\r\n", 3, 6, stage, "'?'"},
      {"\"0F0\"", 1, 1, stage, "'\"'"},
      {"\xef\xbb\xbf"
       "0F0",
       1, 1, stage, "the byte 0xef"},
      // Blocks.
      {"()", 1, 2, stage, "')'"},
      {"(0F0)", 1, 5, "';' and a second action", "')'"},
      {"(0F0,1B0)", 1, 5, "';' and a second action", "','"},
      {"(0F0;)", 1, 6, stage, "')'"},
      {"(0F0;;1B0)", 1, 6, stage, "';'"},
      {"(0F1;1B0", 1, 9, "';' or ')'", end},
      {"(0F1;1B0\n)", 1, 9, "';' or ')'", end},
      {"(0F1;1B0)", 1, 10, "OVERLAP_F_B", end},
      {"(0F1;1B0)OVERLAP,", 1, 10, "OVERLAP_F_B", "'OVERLAP'"},
      {"(0F1;1B0)OVERLAP_F_B2", 1, 21, next, "'2'"},
      {"(0R0;0B0)OVERLAP_F_B", 1, 10, next, "'OVERLAP_F_B'"},
      {"((0F1;1B0)OVERLAP_F_B;0F2)", 1, 2, stage, "'('"},
      {"0F0)", 1, 4, next, "')'"},
  };
  for (const Refused& refused : cases) {
    EXPECT_THAT(
        [&] { parse_schedule(refused.csv); },
        ThrowsMessage<std::invalid_argument>(
            "line " + std::to_string(refused.line) + ", column " +
            std::to_string(refused.column) + " of a schedule: expected " +
            refused.expected + "; found " + refused.found))
        << refused.csv;
  }
}

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

std::string difference(const Schedule& a, const Schedule& b) {
  return describe_difference(a, "mine", b, "yours");
}

TEST(Difference, IsEmptyForEqualSchedules) {
  EXPECT_EQ(difference(fill_drain(2, 4), fill_drain(2, 4)), "");
}

TEST(Difference, BeginsWithNumbers) {
  EXPECT_EQ(difference(fill_drain(1, 4), fill_drain(2, 4)),
            "mine has 1 rank and yours has 2 ranks");
  EXPECT_EQ(difference(fill_drain(2, 1), fill_drain(2, 4)),
            "mine has 1 micro-batch and yours has 4 micro-batches");
}

TEST(Difference, NamesTheFirstActionThatDiffers) {
  // Rank 0 of 1F1B begins its backwards after two forwards.
  EXPECT_EQ(difference(fill_drain(2, 4), one_forward_one_backward(2, 4)),
            "action 2 of rank 0 is 0F2 in mine and 0B0 in yours");
}

TEST(Difference, NamesAnActionThatIsFusedInOneOnly) {
  Schedule fused = one_forward_one_backward(1, 2);
  fused.ranks[0][1].fused_with_next = true;
  EXPECT_EQ(difference(one_forward_one_backward(1, 2), fused),
            "action 1 of rank 0 is 0B0 in mine and 0B0 + next in yours");
}

TEST(Difference, NamesACopyToTheHost) {
  const Schedule plain = fill_drain(1, 2);
  const Schedule offloaded =
      with_offload(plain, [](int, int i) { return i == 1; });
  EXPECT_EQ(difference(plain, offloaded),
            "action 2 of rank 0 is 0B1 in mine and 0O1 in yours");
}

TEST(Difference, NamesAMissingAction) {
  const Schedule whole = fill_drain(2, 2);
  const Schedule forwards = select(whole, [](const Action& action) {
    return action.kind == ActionKind::kForward;
  });
  EXPECT_EQ(difference(whole, forwards),
            "action 2 of rank 0 is 0B1 in mine and missing in yours");
}

}  // namespace
}  // namespace gpipe
