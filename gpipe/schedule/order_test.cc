#include "gpipe/schedule/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "gpipe/schedule/generators/fill_drain.h"
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
