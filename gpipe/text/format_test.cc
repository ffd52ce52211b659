#include "gpipe/text/format.h"

#include <gtest/gtest.h>

namespace gpipe {
namespace {

TEST(FormatTest, PrintsTextsOfAnyLength) {
  EXPECT_EQ(format("%d of %.2f %s", 1, 2.0, "GiB"), "1 of 2.00 GiB");
  EXPECT_EQ(format("%s", ""), "");
  EXPECT_EQ(format("%.0f", 1e308).size(), 309U);
}

}  // namespace
}  // namespace gpipe
