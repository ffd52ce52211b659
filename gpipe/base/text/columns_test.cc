#include "gpipe/base/text/columns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

TEST(ColumnsTest, ColumnsAreAsWideAsTheirLongestCell) {
  EXPECT_THAT(align_columns({{"#", "layer", "parameters"},
                             {"0", "conv", "1,728"},
                             {"10", "relu_17", "0"}},
                            "rlr"),
              ElementsAre("   #  layer    parameters",  //
                          "   0  conv          1,728",  //
                          "  10  relu_17           0"));
}

TEST(ColumnsTest, ACellMayBeEmpty) {
  EXPECT_THAT(align_columns({{"a", "", "b"}, {"", "", "c"}}, "llr"),
              ElementsAre("  a    b", "       c"));
}

TEST(ColumnsTest, NoRowsAreNoLines) {
  EXPECT_THAT(align_columns({}, "lr"), IsEmpty());
}

TEST(ColumnsTest, RepeatsTheLastSideInATextOfLines) {
  EXPECT_EQ(columns_text({{"a", "b", "c"}, {"de", "fg", "hi"}}, "lr"),
            "  a    b   c\n  de  fg  hi\n");
  EXPECT_EQ(columns_text({}, "lr"), "");
  EXPECT_THROW(columns_text({{"a"}}, "lr"), std::invalid_argument);
}

TEST(ColumnsTest, NamesARowOfAnotherLength) {
  EXPECT_THAT(
      [] {
        align_columns({{"a", "b"}, {"a", "b", "c"}}, "lr");
      },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("row 1 has 3 cells"),
                                                 HasSubstr("\"lr\""),
                                                 HasSubstr("2 columns"))));
}

TEST(ColumnsTest, NamesSidesThatAreNone) {
  EXPECT_THAT(
      [] {
        align_columns({{"a", "b"}}, "lc");
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("\"lc\"")));
}

}  // namespace
}  // namespace gpipe
