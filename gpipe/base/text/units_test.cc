#include "gpipe/base/text/units.h"

#include <gtest/gtest.h>

#include <limits>

namespace gpipe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(UnitsTest, BytesAreInTheLargestUnitOfWhichThereIsOne) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1 KiB");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(0x1p20), "1 MiB");
  EXPECT_EQ(bytes_text(0x1p30), "1 GiB");
  EXPECT_EQ(bytes_text(0x1p40), "1 TiB");
}

TEST(UnitsTest, SecondsAreInTheLargestUnitOfWhichThereIsOne) {
  EXPECT_EQ(seconds_text(0), "0 us");
  EXPECT_EQ(seconds_text(0.25e-6), "0.25 us");
  EXPECT_EQ(seconds_text(0.0005), "500 us");
  EXPECT_EQ(seconds_text(0.0625), "62.5 ms");
  EXPECT_EQ(seconds_text(1), "1 s");
}

TEST(UnitsTest, TheLargestUnitGoesOn) {
  EXPECT_EQ(bytes_text(0x1p52), "4096 TiB");
  EXPECT_EQ(seconds_text(3600), "3600 s");
}

TEST(UnitsTest, NumbersHaveFourDigitsAtMost) {
  EXPECT_EQ(bytes_text(1234567), "1.177 MiB");  // 1.17737...
  EXPECT_EQ(bytes_text(170.0 * 0x1p20 + 0x1p17), "170.1 MiB");
  EXPECT_EQ(seconds_text(12.34567), "12.35 s");
}

TEST(UnitsTest, ALimitThatIsNoneIsUnlimited) {
  EXPECT_EQ(bytes_text(kInfinity), "unlimited");
  EXPECT_EQ(seconds_text(kInfinity), "unlimited");
}

TEST(PercentTextTest, RoundsToTheDecimals) {
  EXPECT_EQ(percent_text(0.125), "12.5 %");
  EXPECT_EQ(percent_text(0.126, 0), "13 %");
  EXPECT_EQ(percent_text(-0.5, 2), "-50.00 %");
  EXPECT_EQ(percent_text(1, 0), "100 %");
}

}  // namespace
}  // namespace gpipe
