#include "train_program/plan_report.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace gpipe::train_program {
namespace {

TEST(PlanReportTest, ComparesTheMedianOfTenStepsAfterTheFirst) {
  PlanReport report(0.9);
  EXPECT_FALSE(report.add(100));
  for (int step = 0; step < 9; ++step) EXPECT_FALSE(report.add(1));
  EXPECT_EQ(report.add(50),
            "forward and backward take 1 s (median of 10); 900 ms were "
            "predicted (-10.0 %)");
  for (int step = 0; step < 20; ++step) EXPECT_FALSE(report.add(1));
  EXPECT_FALSE(report.finish());
}

TEST(PlanReportTest, ComparesTheStepsThatThereAre) {
  PlanReport report(2);
  report.add(7);
  EXPECT_FALSE(report.finish());
  report.add(1);
  EXPECT_EQ(report.finish(),
            "forward and backward take 1 s (median of 1); 2 s were "
            "predicted (+100.0 %)");
  PlanReport none(0);
  none.add(1);
  none.add(1);
  EXPECT_FALSE(none.finish());
}

}  // namespace
}  // namespace gpipe::train_program
