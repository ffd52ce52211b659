#include "tools/gpu_checks.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "gpipe/testing/devices.h"

namespace gpipe::tools {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

PeakBytes peak(int64_t active, int64_t allocated, int64_t reserved) {
  return {c10::Device(c10::kHPU, 1), active, allocated, reserved};
}

TEST(ComparePeaks, PassesUpToAQuarterMore) {
  const CheckResult result =
      compare_peaks({peak(1000, 800, 2000)}, {peak(1250, 1000, 9000)});
  EXPECT_EQ(result.outcome, CheckOutcome::kPassed);
  EXPECT_EQ(result.text,
            "hpu:1 active: 1000 bytes, 1250 bytes\n"
            "hpu:1 allocated: 800 bytes, 1000 bytes\n"
            "hpu:1 reserved: 2000 bytes, 9000 bytes\n"
            "peaks of active and allocated bytes grow by at most a quarter");
}

TEST(ComparePeaks, FailsIfActiveOrAllocatedBytesOfAnyDeviceGrow) {
  const PeakBytes constant = peak(1000, 800, 2000);
  for (const PeakBytes& grown :
       {peak(1251, 800, 2000), peak(2000, 1001, 2000)}) {
    const CheckResult result =
        compare_peaks({constant, constant}, {constant, grown});
    EXPECT_EQ(result.outcome, CheckOutcome::kFailed);
    EXPECT_THAT(result.text, EndsWith("micro-batches by more than a quarter"));
  }
}

TEST(ComparePeaks, IsNotPossibleIfActiveBytesAreNotCounted) {
  const CheckResult result =
      compare_peaks({peak(-300, 800, 0)}, {peak(-300, 800, 0)});
  EXPECT_EQ(result.outcome, CheckOutcome::kNotPossible);
  EXPECT_THAT(result.text, EndsWith("does not count active bytes"));
}

TEST(ComparePeaks, RefusesPeaksOfOtherDevices) {
  EXPECT_THROW(compare_peaks({peak(1, 1, 1)}, {}), c10::ValueError);
}

TEST(LargestDifference, IsRelativeToTheLargestElementOfATensor) {
  const auto right = torch::tensor({1.0, -8.0});
  EXPECT_EQ(largest_difference({right}, {right.clone()}), 0);
  EXPECT_EQ(
      largest_difference({right, torch::tensor({1.5, -8.0})}, {right, right}),
      0.0625);
}

TEST(LargestDifference, IsInfiniteForOtherShapesAndForNaN) {
  const auto ones = torch::ones({2});
  for (const auto& other :
       {torch::ones({3}), torch::tensor({1.0F, std::nanf("")})}) {
    EXPECT_TRUE(std::isinf(largest_difference({other}, {ones})));
    EXPECT_TRUE(std::isinf(largest_difference({ones}, {other})));
  }
  EXPECT_TRUE(std::isinf(largest_difference({ones}, {})));
}

TEST(GpuChecks, LstmWithDropoutHasTheSameGradientsWhenRecomputed) {
  const CheckResult result = check_lstm(testing::devices(2));
  EXPECT_EQ(result.outcome, CheckOutcome::kPassed) << result.text;
  if (testing::device().type() == c10::kCUDA) return;  // cuDNN may round
  EXPECT_THAT(result.text, HasSubstr("always and never: 0, at most"));
}

TEST(GpuChecks, RandomDelaysChangeNoBit) {
  const CheckResult result = check_order(testing::devices(3), /*rounds=*/2);
  EXPECT_EQ(result.outcome, CheckOutcome::kPassed) << result.text;
  EXPECT_EQ(result.text,
            "fill-drain: 2 rounds with equal bits\n"
            "1f1b: 2 rounds with equal bits\n"
            "zb-h1: 2 rounds with equal bits\n"
            "random delays change no bit");
}

TEST(GpuChecks, MemoryIsNotMeasuredOnCpus) {
  if (!testing::device().is_cpu()) GTEST_SKIP() << "runs on the CPU";
  EXPECT_EQ(check_memory(testing::devices(2), 8, 8).outcome,
            CheckOutcome::kNotPossible);
  EXPECT_EQ(check_near_full(testing::devices(2), 8, 8).outcome,
            CheckOutcome::kNotPossible);
}

TEST(GpuChecks, AllocatedBytesOfAStepFollowTheScheduleNotTheMicrobatches) {
  if (testing::device().is_cpu()) GTEST_SKIP() << "a CPU has no such figures";
  constexpr int64_t kRows = 64, kWidth = 128;
  const auto few = peaks_of_step(testing::devices(2), 8, kRows, kWidth);
  const auto many = peaks_of_step(testing::devices(2), 64, kRows, kWidth);
  ASSERT_EQ(few.size(), many.size());
  for (std::size_t k = 0; k < few.size(); ++k) {
    EXPECT_EQ(few[k].device, many[k].device);
    // A micro-batch keeps at least the outputs of Linear and Tanh.
    EXPECT_GE(few[k].allocated, 2 * kRows * kWidth * 4);
    EXPECT_LE(many[k].allocated, few[k].allocated * 5 / 4);
  }
}

}  // namespace
}  // namespace gpipe::tools
