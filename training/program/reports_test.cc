#include "training/program/reports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

namespace gpipe::train_program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// ---- Progress

TEST(StatusTest, TellsWhereItIsHowFastAndForHowLong) {
  Progress progress;
  progress.first = 20;
  progress.step = 120;
  progress.steps = 220;
  progress.epoch = 1.25;
  progress.loss = 2.3024;
  progress.rows_per_second = 85.34;
  progress.rows_name = "images";
  progress.seconds = 65;
  EXPECT_EQ(to_text(progress),
            "[##########..........] step 120/220 | epoch 1.25 | loss 2.302 | "
            "85.3 images/s | 00:01:05 | 00:01:05 left");
}

TEST(StatusTest, WithoutAStepNothingIsJudged) {
  Progress progress;
  progress.steps = 10;
  progress.rows_name = "images";
  EXPECT_EQ(to_text(progress),
            "[....................] step 0/10 | epoch 0.00 | loss 0 | 0.0 "
            "images/s | 00:00:00");
}

// ---- Peak memory, for --plan

constexpr int64_t kKib = 1024;

TEST(StepMemoryTest, ComparesTheLargestPeakOfAllStepsWithItsPrediction) {
  StepMemory::count_cpu_tensors();
  const at::Tensor data = at::empty({kKib}, at::kByte);  // is not counted
  const torch::nn::Linear module(
      torch::nn::LinearOptions(256, 256).bias(false));  // 256 KiB
  StepMemory memory(*module, {{at::kCPU, {0, 1}, 384 * kKib}});
  const at::Tensor state = at::empty({64 * kKib}, at::kByte);
  memory.begin();
  { const at::Tensor gradient = at::empty({192 * kKib}, at::kByte); }
  memory.end();
  { const at::Tensor between = at::empty({1024 * kKib}, at::kByte); }
  memory.begin();
  { const at::Tensor gradient = at::empty({128 * kKib}, at::kByte); }
  memory.end();
  EXPECT_THAT(memory.lines(),
              ElementsAre("partitions 0,1 on cpu: at most 512 KiB in use; 384 "
                          "KiB were predicted (-25.0 %)"));
}

TEST(StepMemoryTest, SaysNothingWithoutAPrediction) {
  const torch::nn::Linear module(1, 1);
  EXPECT_THAT(StepMemory(*module, {}).lines(), IsEmpty());
}

// ---- Predicted and measured steps, for --plan

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
