#include "gpipe/program/milliseconds.h"

#include <gtest/gtest.h>

#include <limits>

namespace gpipe {
namespace {

using std::chrono::milliseconds;

TEST(MillisecondsTest, AreRoundedUp) {
  EXPECT_EQ(milliseconds_of(0.25), milliseconds(250));
  EXPECT_EQ(milliseconds_of(60), milliseconds(60000));
  EXPECT_EQ(milliseconds_of(1e-9), milliseconds(1));
  EXPECT_EQ(milliseconds_of(0), milliseconds(0));
  EXPECT_EQ(milliseconds_of(-2), milliseconds(-2000));
}

TEST(MillisecondsTest, EndWhereTheirIntegerDoes) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(milliseconds_of(infinity), milliseconds::max());
  EXPECT_EQ(milliseconds_of(1e300), milliseconds::max());
  EXPECT_EQ(milliseconds_of(-infinity), milliseconds::min());
  EXPECT_EQ(milliseconds_of(std::numeric_limits<double>::quiet_NaN()),
            milliseconds(0));
}

}  // namespace
}  // namespace gpipe
