#include "benchmarks/unet_timeline/measure.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/unet_timeline/skip_layers.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Returns a benchmark with a skip that bypasses the second of three partitions.
Benchmark measured_benchmark() {
  Benchmark benchmark;
  benchmark.program.name = "toy_timeline";
  benchmark.model = [](const Experiment&) {
    return torch::nn::Sequential(Stash(), torch::nn::Linear(4, 4), Add());
  };
  benchmark.loss = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean();
  };
  benchmark.small.input = [](int64_t rows) { return at::ones({rows, 4}); };
  benchmark.small.target = benchmark.small.input;
  return benchmark;
}

Outcome row(const std::string& name) {
  Outcome row;
  row.experiment.name = name;
  row.experiment.partitions = 3;
  row.experiment.batch_size = 6;
  row.experiment.chunks = 3;
  row.experiment.balance = {1, 1, 1};
  return row;
}

RunOptions make_options() {
  RunOptions options;
  options.mode = Mode::kMeasure;
  options.small = true;
  options.settings.devices = {c10::kCPU};
  options.epochs = 3;
  options.skip_epochs = 1;
  return options;
}

TEST(PlanDevices, NamesDevicesAndThreads) {
  std::vector<Outcome> rows{row("all on")};
  plan_devices({c10::kCPU}, &rows);
  EXPECT_EQ(rows[0].devices, "cpu x 3");
  EXPECT_THAT(rows[0].threads, HasSubstr("3 x "));
  EXPECT_EQ(rows[0].error, "");
}

TEST(PlanDevices, LeavesOutRowsWithoutCopyStreamsWhereNothingIsCopied) {
  std::vector<Outcome> rows{row("all on"), row("no copy streams")};
  plan_devices({c10::kCPU}, &rows);
  EXPECT_EQ(rows[0].error, "");
  EXPECT_EQ(rows[1].error,
            "left out: nothing is copied, since all partitions are on cpu");
  // plan_devices() does not use the devices, so they need not exist.
  const c10::Device gpu(c10::kCUDA, 0), other(c10::kCUDA, 1);
  rows = {row("no copy streams"), row("no copy streams")};
  plan_devices({gpu, gpu, gpu}, &rows);
  EXPECT_THAT(rows[0].error, HasSubstr("on cuda:0"));
  rows = {row("no copy streams")};
  plan_devices({gpu, gpu, other}, &rows);
  EXPECT_EQ(rows[0].error, "");
  EXPECT_EQ(rows[0].devices, "cuda:0 x 2, cuda:1");
  EXPECT_EQ(rows[0].threads, "");
}

TEST(PlanDevices, TooFewDevicesAreTold) {
  std::vector<Outcome> rows{row("all on")};
  plan_devices({c10::kCPU, c10::kCPU}, &rows);
  EXPECT_THAT(rows[0].error, HasSubstr("needs 3 devices, there are 2"));
}

TEST(MeasureRows, GivesADurationPerEpochThatIsNotSkipped) {
  std::vector<Outcome> rows{row("all on"), row("no direct skips"),
                            row("no ordered backward")};
  measure_rows(measured_benchmark(), make_options(), /*timelines=*/false,
               &rows);
  for (const Outcome& each : rows) {
    EXPECT_EQ(each.error, "") << each.experiment.name;
    EXPECT_THAT(each.durations, SizeIs(2));
    EXPECT_EQ(each.samples, 6);
    EXPECT_FALSE(each.timeline);
  }
}

TEST(MeasureRows, TimelinesAreOfOneStep) {
  std::vector<Outcome> rows{row("all on"), row("no direct skips")};
  measure_rows(measured_benchmark(), make_options(), /*timelines=*/true, &rows);
  for (const Outcome& each : rows) {
    ASSERT_TRUE(each.timeline) << each.experiment.name;
    // 3 forwards, 2 recomputes and 3 backwards.
    EXPECT_THAT(each.timeline->ranks, AllOf(SizeIs(3), Each(SizeIs(8))));
  }
}

TEST(MeasureRows, ARowWithAnErrorStaysAsItIs) {
  std::vector<Outcome> rows{row("all on"), row("all off")};
  rows[1].error = "left out";
  measure_rows(measured_benchmark(), make_options(), /*timelines=*/false,
               &rows);
  EXPECT_THAT(rows[0].durations, SizeIs(2));
  EXPECT_EQ(rows[1].error, "left out");
  EXPECT_THAT(rows[1].durations, SizeIs(0));
}

TEST(MeasureRows, ARowThatFailsLeavesTheOthers) {
  std::vector<Outcome> rows{row("no direct skips"), row("all on")};
  rows[0].experiment.balance = {1, 1, 2};
  measure_rows(measured_benchmark(), make_options(), /*timelines=*/false,
               &rows);
  EXPECT_THAT(rows[0].error, HasSubstr("the sum of the balance is 4"));
  EXPECT_THAT(rows[0].durations, SizeIs(0));
  EXPECT_THAT(rows[1].durations, SizeIs(2));
  EXPECT_EQ(rows[1].error, "");
}

}  // namespace
}  // namespace gpipe::benchmarks
