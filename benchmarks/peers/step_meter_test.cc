#include "benchmarks/peers/step_meter.h"

#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "gpipe/base/devices.h"
#include "gpipe/testing/devices.h"

namespace gpipe::benchmarks {
namespace {

using testing::device;

TEST(StepWatchTest, CountsADeviceOnceAndItsWork) {
  const StepWatch watch({device(), device()});
  torch::Tensor x = torch::ones({64, 64}, device());
  const double before = watch.elapsed().wall_seconds;
  // No product of matrices: its workspace would stay for the next test.
  for (int k = 0; k < 100; ++k) x = (x * x).clamp(0, 1);
  const Duration took = watch.elapsed();
  EXPECT_GE(before, 0);
  EXPECT_GT(took.wall_seconds, before);
  EXPECT_GE(took.cpu_seconds, 0);
}

// ASan keeps a byte of shadow memory for 8 bytes: 8 MiB for the 64 below.
#if defined(__SANITIZE_ADDRESS__)
constexpr double kShadow = 8;
#else
constexpr double kShadow = 0;
#endif

// 64 MiB that are freed before the end, beside 8 that stay.
TEST(PeakMemoryTest, IsThatOfTheStepsAfterItsConstruction) {
  const auto bytes = torch::TensorOptions(device()).dtype(torch::kByte);
  torch::zeros({128 << 20}, bytes).add_(1);
  const torch::Tensor stays = torch::zeros({8 << 20}, bytes).add_(1);
  if (!device().is_cpu()) at::accelerator::emptyCache();
  const PeakMemory memory({device(), device()});
  torch::zeros({64 << 20}, bytes).add_(1);
  synchronize({device()});
  const std::vector<double> peaks = memory.peaks_mib();
  if (device().is_cpu()) {
    ASSERT_EQ(peaks.size(), 1u);
    EXPECT_NEAR(peaks[0], 64 + kShadow, 8);
  } else {
    ASSERT_EQ(peaks.size(), 2u);
    EXPECT_NEAR(peaks[0], 72, 0.1);
    // The simulated allocator reserves nothing.
    if (device().is_cuda()) {
      EXPECT_GE(peaks[1], peaks[0]);
    }
  }
}

}  // namespace
}  // namespace gpipe::benchmarks
