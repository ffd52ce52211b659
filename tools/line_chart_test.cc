#include "tools/line_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace gpipe::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The area of lines is from 60 to 360 and from 40 to 300 pixels.
TEST(LineChartTest, PointsAreProportionalOnOneScale) {
  const std::string svg = to_svg(
      {{"a", {"0", "1", "2"}, {{"x", {1, 2, 3}}}}, {"b", {"0"}, {{"x", {2}}}}});
  EXPECT_THAT(svg, HasSubstr("points=\"60.00,300.00 210.00,170.00 "
                             "360.00,40.00 \""));
  EXPECT_THAT(svg, HasSubstr("points=\"570.00,170.00 \""));
}

TEST(LineChartTest, NamesAreEscaped) {
  EXPECT_THAT(to_svg({{"a < b", {"&"}, {{"\"x\"", {1}}}}}),
              ::testing::AllOf(HasSubstr("a &lt; b"), HasSubstr("&amp;"),
                               HasSubstr("&quot;x&quot;")));
}

TEST(LineChartTest, EqualValuesAndNoValuesHaveAPicture) {
  EXPECT_THAT(to_svg({{"a", {"0"}, {{"x", {5}}}}}),
              HasSubstr("points=\"210.00,300.00 \""));
  EXPECT_THAT(to_svg({}), HasSubstr("</svg>"));
}

TEST(LineChartTest, WrongValuesAreRefused) {
  EXPECT_THAT(
      [] {
        to_svg({{"a", {"0", "1"}, {{"x", {1}}}}});
      },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("x has 1 values for 2 ticks")));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(
      [&] {
        to_svg({{"a", {"0"}, {{"x", {nan}}}}});
      },
      ThrowsMessage<std::invalid_argument>(HasSubstr("finite")));
}

}  // namespace
}  // namespace gpipe::tools
