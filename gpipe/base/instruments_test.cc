#include "gpipe/base/instruments.h"

#include <ATen/ATen.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "gpipe/testing/simulated/simulated.h"

namespace gpipe::instruments {
namespace {

TEST(FailNth, FailsOnceAndCountsAll) {
  FailNth failing;
  failing.pass();  // nothing is armed
  failing.arm(2, [] { throw std::runtime_error("third"); });
  failing.pass();
  failing.pass();
  EXPECT_THROW(failing.pass(), std::runtime_error);
  failing.pass();
  EXPECT_EQ(failing.disarm(), 4);
  failing.pass();

  failing.arm(0, [] { throw std::runtime_error("first"); });
  const auto fail = failing.take();  // another thread may call it
  ASSERT_TRUE(fail);
  EXPECT_FALSE(failing.take());
  EXPECT_EQ(failing.disarm(), 2);
}

using ::testing::ExitedWithCode;

const c10::Device kAccelerator(c10::kHPU, 1);

at::Tensor floats(int64_t count, const c10::Device& device) {
  return at::empty({count}, at::TensorOptions(device));
}

// A new process, in which nothing has used an accelerator. CUDA's allocator
// throws there.
TEST(TensorBytesDeathTest, AreKnownBeforeTheDeviceIsUsed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto read = [] {
    reset_peak_bytes(kAccelerator);
    const bool none = live_bytes(kAccelerator) == 0 &&
                      peak_bytes(kAccelerator) == 0 &&
                      peak_reserved_bytes(kAccelerator) == 0;
    std::_Exit(none ? 0 : 1);
  };
  EXPECT_EXIT(read(), ExitedWithCode(0), "");
}

TEST(TensorBytesTest, OfAnAcceleratorAreThoseOfItsTensors) {
  const int64_t before = live_bytes(kAccelerator);
  reset_peak_bytes(kAccelerator);
  const at::Tensor kept = floats(100, kAccelerator);
  { const at::Tensor gone = floats(1000, kAccelerator); }
  { const at::Tensor elsewhere = floats(5000, {c10::kHPU, 0}); }
  EXPECT_EQ(live_bytes(kAccelerator), before + 400);
  EXPECT_EQ(peak_bytes(kAccelerator), before + 4400);
  EXPECT_GE(*peak_reserved_bytes(kAccelerator), 4400);
}

// A block that another stream still uses is freed for the host, but CUDA counts
// it as requested until an allocation looks at the stream.
TEST(TensorBytesTest, DoNotCountWhatWaitsForAStream) {
  const int64_t before = live_bytes(kAccelerator);
  {
    const at::Tensor used = floats(100, kAccelerator);
    used.record_stream(
        c10::impl::VirtualGuardImpl(c10::kHPU).getNewStream(kAccelerator));
  }
  EXPECT_EQ(live_bytes(kAccelerator), before);
}

TEST(TensorBytesTest, OfTheCpuAreThoseOfTheCountingAllocator) {
  CountingAllocator::install();
  reset_peak_bytes(c10::kCPU);
  const int64_t before = live_bytes(c10::kCPU);
  { const at::Tensor gone = floats(10, c10::kCPU); }
  EXPECT_EQ(live_bytes(c10::kCPU), before);
  EXPECT_EQ(peak_bytes(c10::kCPU), before + 40);
  EXPECT_EQ(peak_reserved_bytes(c10::kCPU), std::nullopt);
}

// install() is for the rest of the process: one test.
TEST(CountingAllocatorTest, IgnoresTheTensorsOfOtherThreads) {
  CountingAllocator::install();
  at::Tensor mine = at::empty({10}, at::kByte), theirs;
  std::thread([&] { theirs = at::empty({100}, at::kByte); }).join();
  EXPECT_EQ(CountingAllocator::live_bytes(), 110);

  CountingAllocator::ignore_other_threads();
  at::Tensor ignored;
  std::thread([&] { ignored = at::empty({1000}, at::kByte); }).join();
  EXPECT_EQ(CountingAllocator::live_bytes(), 110);
  EXPECT_EQ(CountingAllocator::peak_bytes(), 110);
  ignored.reset();
  theirs.reset();  // counted before
  EXPECT_EQ(CountingAllocator::live_bytes(), 10);
  at::Tensor more = at::empty({5}, at::kByte);
  EXPECT_EQ(CountingAllocator::live_bytes(), 15);
  std::thread([&] { mine.reset(); }).join();
  EXPECT_EQ(CountingAllocator::live_bytes(), 5);
}

}  // namespace
}  // namespace gpipe::instruments
