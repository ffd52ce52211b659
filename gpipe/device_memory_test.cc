#include "gpipe/device_memory.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "gpipe/testing/simulated/test_fixture.h"

namespace gpipe::simulated {
namespace {

class DeviceMemoryTest : public SimulatedTest {};

TEST_F(DeviceMemoryTest, OfAnAcceleratorIsWhatItsTensorsTake) {
  const double before = *device_memory(hpu(1));
  at::Tensor tensor = at::empty({1000}, at::TensorOptions(hpu(1)));
  EXPECT_EQ(*device_memory(hpu(1)), before + 4000);
  EXPECT_EQ(*device_memory(hpu(2)), 0);
  const DeviceScope current(1);
  EXPECT_EQ(*device_memory(c10::Device(kDeviceType)), before + 4000);
  tensor.reset();
  EXPECT_EQ(*device_memory(hpu(1)), before);
}

// A new process, in which nothing has used an accelerator. CUDA's allocator
// throws there if it is asked.
TEST(DeviceMemoryDeathTest, IsNoneBeforeTheDeviceIsUsed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read = [] { std::_Exit(device_memory(hpu(1)) == 0 ? 0 : 1); };
  EXPECT_EXIT(read(), ::testing::ExitedWithCode(0), "");
}

TEST_F(DeviceMemoryTest, ReadingItDoesNotMakeTheHostWait) {
  const auto waits = host_waits();
  device_memory(hpu(0));
  EXPECT_EQ(host_waits(), waits);
}

TEST_F(DeviceMemoryTest, OfTheCpuGrowsWithWhatIsTouched) {
  const double before = *device_memory(c10::kCPU);
  EXPECT_GT(before, 0);
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const std::unique_ptr<char[]> bytes(new char[kBytes]);
  std::memset(bytes.get(), 1, kBytes);
  EXPECT_EQ(bytes[kBytes - 1], 1);
  // The count of the operating system lags by some pages.
  EXPECT_GE(*device_memory(c10::kCPU), before + 0.9 * kBytes);
}

TEST_F(DeviceMemoryTest, OfMetaTensorsIsNotKnown) {
  EXPECT_FALSE(device_memory(c10::Device(c10::kMeta, 0)).has_value());
}

}  // namespace
}  // namespace gpipe::simulated
