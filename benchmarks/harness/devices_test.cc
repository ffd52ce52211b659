#include "benchmarks/harness/devices.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

const std::vector<c10::Device> kTwoOnCpu{c10::kCPU, c10::kCPU};

at::Tensor floats(int64_t count) { return at::empty({count}); }

TEST(DeviceMemoryTest, PartitionsOnTheCpuShareAnEntry) {
  const MemoryWatch watch(kTwoOnCpu);
  const at::Tensor kept = floats(100);
  { const at::Tensor gone = floats(1000); }
  const auto memory = watch.read({});
  ASSERT_EQ(memory.size(), 1U);
  EXPECT_EQ(memory[0].peak, 4400);
  EXPECT_EQ(memory[0].reserved, std::nullopt);
}

TEST(DeviceMemoryTest, PeaksBeginAnewAboveWhatIsHeld) {
  const at::Tensor before = floats(50);
  const MemoryWatch watch(kTwoOnCpu);
  const at::Tensor kept = floats(100);
  { const at::Tensor gone = floats(1000); }
  watch.reset_peaks();
  { const at::Tensor gone = floats(10); }
  EXPECT_EQ(watch.read({})[0].peak, 440);
}

TEST(DeviceMemoryTest, TellsWhatStaysByKind) {
  const MemoryWatch watch(kTwoOnCpu);
  const at::Tensor trained = floats(3).requires_grad_(), frozen = floats(5);
  const auto memory =
      watch.read({{trained, frozen, trained}, {floats(7)}, {floats(11)}});
  EXPECT_EQ(memory[0].parameters, 4 * (3 + 5));
  EXPECT_EQ(memory[0].buffers, 4 * 7);
  EXPECT_EQ(memory[0].gradients, 4 * 3);
  EXPECT_EQ(memory[0].optimizer_state, 4 * 11);
  EXPECT_EQ(memory[0].lasting(), 4 * (8 + 3 + 11));
}

TEST(DeviceMemoryTest, SharedDevicesAreTold) {
  EXPECT_EQ(devices_text({c10::kCPU}), "cpu");
  EXPECT_EQ(devices_text(kTwoOnCpu), "cpu x 2");
  EXPECT_EQ(devices_text({{c10::kCUDA, 0}, {c10::kCUDA, 1}, {c10::kCUDA, 0}}),
            "cuda:0 x 2, cuda:1");
}

}  // namespace
}  // namespace gpipe::benchmarks
