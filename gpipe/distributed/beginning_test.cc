#include "gpipe/distributed/beginning.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

Beginning beginning() {
  Beginning beginning;
  beginning.refused = true;
  beginning.refusal = "no";
  beginning.schedule = 0xfedcba98;
  beginning.rows = int64_t{1} << 40;
  beginning.split = true;
  beginning.seed = ~uint64_t{0};
  return beginning;
}

Beginning rows(int64_t count, bool split = false) {
  Beginning beginning;
  beginning.rows = count;
  beginning.split = split;
  return beginning;
}

Beginning schedule(uint32_t checksum) {
  Beginning beginning;
  beginning.schedule = checksum;
  return beginning;
}

// Returns two pipelines of two ranks.
RankLayout two_by_two() {
  RankLayout layout;
  layout.ranks = layout.replicas = 2;
  layout.rank_of_stage = {0, 1};
  return layout;
}

TEST(Beginning, ComesBack) {
  const Beginning back = Beginning::decode(beginning().encode());
  EXPECT_TRUE(back.refused);
  EXPECT_EQ(back.refusal, "no");
  EXPECT_EQ(back.schedule, 0xfedcba98);
  EXPECT_EQ(back.rows, int64_t{1} << 40);
  EXPECT_TRUE(back.split);
  EXPECT_EQ(back.seed, ~uint64_t{0});
  EXPECT_EQ(Beginning::decode(Beginning().encode()).rows, -1);
}

TEST(Beginning, IsRefusedIfItIsCutOffOrTooLong) {
  const std::string bytes = beginning().encode();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(
        testing::error_of([&] { Beginning::decode(bytes.substr(0, size)); }),
        "")
        << size;
  }
  EXPECT_NE(testing::error_of([&] { Beginning::decode(bytes + "x"); }), "");
}

TEST(FindOtherRows, AcceptsEqualRowsPartsAndRanksWithoutTarget) {
  EXPECT_FALSE(
      find_other_rows({rows(8), rows(8), rows(4), rows(-1)}, two_by_two()));
  EXPECT_FALSE(find_other_rows({rows(8, true), rows(3, true), rows(4), rows(4)},
                               two_by_two()));
}

TEST(FindOtherRows, NamesBothRanksOfThePipeline) {
  const auto misfit =
      find_other_rows({rows(8), rows(8), rows(1), rows(7)}, two_by_two());
  ASSERT_TRUE(misfit);
  EXPECT_EQ(misfit->rank, 3);
  EXPECT_EQ(misfit->what,
            "the input of rank 2 has 1 row, but the target of rank 3 has 7; on "
            "the last rank, pass the target that belongs to the input of the "
            "first rank");
}

TEST(FindOtherRows, ComparesHowInputAndTargetAreGiven) {
  const auto misfit =
      find_other_rows({rows(8), rows(8, true), rows(8), rows(8)}, two_by_two());
  ASSERT_TRUE(misfit);
  EXPECT_EQ(misfit->rank, 1);
  EXPECT_EQ(misfit->what,
            "the input of rank 0 is one value, but the target of rank 1 is "
            "given as Microbatches; give both in the same way");
}

TEST(FindOtherSchedule, IsTheFirstThatIsNotTheMostCommon) {
  EXPECT_FALSE(find_other_schedule({schedule(5), schedule(5)}));
  const auto first =
      find_other_schedule({schedule(4), schedule(5), schedule(5)});
  ASSERT_TRUE(first);
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(first->most, 1);
  const auto tie = find_other_schedule({schedule(4), schedule(5)});
  ASSERT_TRUE(tie);
  EXPECT_EQ(tie->rank, 1);
  EXPECT_EQ(tie->most, 0);
}

}  // namespace
}  // namespace gpipe::internal
