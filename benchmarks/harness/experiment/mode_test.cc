#include "benchmarks/harness/experiment/mode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

using ::testing::HasSubstr;

TEST(ModeTest, AutoMeasuresSpeedsAnywhere) {
  EXPECT_EQ(parse_mode("auto", TableKind::kSpeed, true), Mode::kMeasure);
  EXPECT_EQ(parse_mode("auto", TableKind::kSpeed, false), Mode::kMeasure);
}

TEST(ModeTest, AutoMeasuresMemoryWhereTheDevicesSuffice) {
  EXPECT_EQ(parse_mode("auto", TableKind::kMemory, true), Mode::kMeasure);
  EXPECT_EQ(parse_mode("auto", TableKind::kMemory, false), Mode::kDryRun);
}

TEST(ModeTest, AutoMeasuresATimelineWhereTheDevicesSuffice) {
  EXPECT_EQ(parse_mode("auto", TableKind::kTimeline, true), Mode::kMeasure);
  EXPECT_EQ(parse_mode("auto", TableKind::kTimeline, false), Mode::kSimulate);
  EXPECT_THROW(parse_mode("dry_run", TableKind::kTimeline, true),
               std::invalid_argument);
}

TEST(ModeTest, ANamedModeIsTaken) {
  EXPECT_EQ(parse_mode("measure", TableKind::kMemory, false), Mode::kMeasure);
  EXPECT_EQ(parse_mode("simulate", TableKind::kSpeed, true), Mode::kSimulate);
  EXPECT_EQ(parse_mode("dry_run", TableKind::kSpeed, true), Mode::kDryRun);
}

TEST(ModeTest, SimulatedMemoryIsRefusedWithTheRemedy) {
  try {
    parse_mode("simulate", TableKind::kMemory, false);
    FAIL() << "memory was simulated";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("use --mode=dry_run"));
  }
}

TEST(ModeTest, AnUnknownModeIsRefused) {
  EXPECT_THROW(parse_mode("guess", TableKind::kSpeed, true),
               std::invalid_argument);
}

TEST(ModeTest, OnlyWhatIsMeasuredWithoutAcceleratorsIsSmall) {
  EXPECT_TRUE(parse_scale("auto", Mode::kMeasure, false));
  EXPECT_FALSE(parse_scale("auto", Mode::kMeasure, true));
  EXPECT_FALSE(parse_scale("auto", Mode::kSimulate, false));
  EXPECT_FALSE(parse_scale("auto", Mode::kDryRun, false));
}

TEST(ModeTest, ANamedScaleIsTaken) {
  EXPECT_FALSE(parse_scale("paper", Mode::kMeasure, false));
  EXPECT_TRUE(parse_scale("small", Mode::kSimulate, true));
  EXPECT_THROW(parse_scale("huge", Mode::kMeasure, true),
               std::invalid_argument);
}

TEST(ModeTest, NumbersAreLabelled) {
  EXPECT_EQ(to_string(Mode::kMeasure), "measured");
  EXPECT_EQ(to_string(Mode::kSimulate), "simulated");
  EXPECT_EQ(to_string(Mode::kDryRun), "dry-run");
}

}  // namespace
}  // namespace gpipe::benchmarks
