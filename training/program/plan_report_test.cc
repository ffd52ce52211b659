#include "training/program/plan_report.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gpipe::train_program {
namespace {

// Returns a report of one process, whose module has no bytes. `kib`: the
// predicted memory; negative for none.
PlanReport report_of(double seconds, double kib) {
  StepMemory::count_cpu_tensors();
  std::vector<PlannedMemory> planned;
  if (kib >= 0) planned.push_back({at::kCPU, {1}, 1024 * kib});
  return {seconds, StepMemory(torch::nn::Module(), planned),
          [](const std::string& mine) {
            return std::vector<std::string>{"of rank 0", mine};
          }};
}

std::optional<std::string> step(PlanReport& report, double seconds) {
  report.begin();
  const at::Tensor gradient = at::empty({8192}, at::kByte);
  return report.end(seconds);
}

TEST(PlanReportTest, ComparesTheMedianOfTenStepsAfterTheFirst) {
  PlanReport report = report_of(0.9, 6);
  EXPECT_FALSE(step(report, 100));
  for (int k = 0; k < 9; ++k) EXPECT_FALSE(step(report, 1));
  EXPECT_EQ(step(report, 50),
            "forward and backward take 1 s (median of 10); 900 ms were "
            "predicted (-10.0 %)\n"
            "of rank 0\n"
            "partition 1 on cpu: at most 8 KiB in use; 6 KiB were predicted "
            "(-25.0 %)");
  for (int k = 0; k < 20; ++k) EXPECT_FALSE(step(report, 1));
  EXPECT_FALSE(report.finish());
}

TEST(PlanReportTest, ComparesTheStepsThatThereAre) {
  PlanReport report = report_of(2, -1);
  step(report, 7);
  EXPECT_FALSE(report.finish());
  step(report, 1);
  EXPECT_EQ(report.finish(),
            "forward and backward take 1 s (median of 1); 2 s were "
            "predicted (+100.0 %)\n"
            "of rank 0");
  PlanReport none = report_of(0, -1);
  step(none, 1);
  step(none, 1);
  EXPECT_FALSE(none.finish());
}

}  // namespace
}  // namespace gpipe::train_program
