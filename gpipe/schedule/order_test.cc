#include "gpipe/schedule/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/schedule/breadth_first.h"
#include "gpipe/schedule/text.h"

namespace gpipe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

TEST(StartTicks, CountsFromZeroAndWaitsForNeeds) {
  EXPECT_THAT(start_ticks(fill_drain(2, 2)),
              ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(1, 2, 3, 4)));
}

TEST(StartTicks, HoldsABlockUntilAllOfItsNeedsAreDone) {
  EXPECT_THAT(start_ticks(parse_schedule("0F0,0F1,0B0\n1F0,1B0\n")),
              ElementsAre(ElementsAre(0, 1, 3), ElementsAre(1, 2)));
  EXPECT_THAT(
      start_ticks(parse_schedule("0F0,(0F1;0B0)OVERLAP_F_B\n1F0,1B0\n")),
      ElementsAre(ElementsAre(0, 3, 4), ElementsAre(1, 2)));
}

TEST(StartTicks, DoesNotWaitForWhatIsEarlierInTheBlock) {
  EXPECT_THAT(start_ticks(parse_schedule("0F0,(0R0;0B0)\n")),
              ElementsAre(ElementsAre(0, 1, 2)));
  // A block waits forever for its own later actions.
  EXPECT_THAT(start_ticks(parse_schedule("0F0,(0B0;0R0)\n")),
              ElementsAre(ElementsAre(0)));
}

TEST(StartTicks, CountsATickForEachCopyToAndFromTheHost) {
  EXPECT_THAT(start_ticks(parse_schedule("0F0,0O0,0L0,0B0\n1F0,1B0\n")),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(1, 2)));
}

TEST(StartTicks, EndsWhereARankGetsStuck) {
  EXPECT_THAT(start_ticks(parse_schedule("0F0,0B0\n1B0,1F0\n\n2F0\n")),
              ElementsAre(ElementsAre(0), IsEmpty(), IsEmpty(), IsEmpty()));
  // A copy back waits for the copy to the host, and the backward for both.
  EXPECT_THAT(start_ticks(parse_schedule("0F0,0L0,0O0\n1F0,1B0,1O0,1L0\n")),
              ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST(StartTicks, WaitsForTheFirstOfEqualActions) {
  EXPECT_THAT(start_ticks(parse_schedule("0F0,0F0\n1F0\n")),
              ElementsAre(ElementsAre(0, 1), ElementsAre(1)));
}

TEST(StartTicks, WakesAllRanksThatWaitForTheSame) {
  // Three ranks reach 1F0 before 0F0 is done.
  EXPECT_THAT(start_ticks(parse_schedule("1F0\n1F0\n0F1,0F0\n1F0\n")),
              ElementsAre(ElementsAre(2), ElementsAre(2), ElementsAre(0, 1),
                          ElementsAre(2)));
}

TEST(ClockOrder, PutsBlocksWhereTheyRun) {
  EXPECT_THAT(
      clock_order(parse_schedule("0F0,(0F1;0B0)OVERLAP_F_B\n1F0,1B0\n")),
      ElementsAre(ElementsAre(0 * 2, 3 * 2, 4 * 2),
                  ElementsAre(1 * 2 + 1, 2 * 2 + 1)));
}

TEST(ClockOrder, NamesTheFirstActionOfABlockThatCannotStart) {
  EXPECT_THAT(
      [] { clock_order(parse_schedule("0F0,(0F1;1B1)OVERLAP_F_B,1F1\n")); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("0F1 of rank 0")));
}

}  // namespace
}  // namespace gpipe

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> texts(const Action& action) {
  std::vector<std::string> texts;
  for (const Action& need : needs(action)) texts.push_back(to_string(need));
  return texts;
}

TEST(NeedsTest, AreOfTheNeighboursAndItsOwn) {
  EXPECT_THAT(texts({3, ActionKind::kForward, 5}), ElementsAre("2F5"));
  EXPECT_THAT(texts({3, ActionKind::kRecompute, 5}), ElementsAre("3F5"));
  EXPECT_THAT(texts({3, ActionKind::kBackward, 5}),
              ElementsAre("3F5", "3R5", "3L5", "4B5", "4I5"));
  EXPECT_THAT(texts({3, ActionKind::kBackwardInput, 5}),
              ElementsAre("3F5", "3R5", "3L5", "4B5", "4I5"));
  EXPECT_THAT(texts({3, ActionKind::kBackwardWeight, 5}), ElementsAre("3I5"));
  EXPECT_THAT(texts({3, ActionKind::kOffload, 5}), ElementsAre("3F5", "3R5"));
  EXPECT_THAT(texts({3, ActionKind::kReload, 5}), ElementsAre("3O5"));
}

// schedule_fuzz found an overflow here, for a schedule that is refused later.
TEST(NeedsTest, HaveNoNeighboursBeyondTheNumbers) {
  constexpr int kMost = std::numeric_limits<int>::max();
  constexpr int kLeast = std::numeric_limits<int>::min();
  const std::string most = std::to_string(kMost);
  EXPECT_THAT(texts({kMost, ActionKind::kBackward, 0}),
              ElementsAre(most + "F0", most + "R0", most + "L0"));
  EXPECT_THAT(texts({kLeast, ActionKind::kForward, 0}), IsEmpty());
}

}  // namespace
}  // namespace gpipe::internal
