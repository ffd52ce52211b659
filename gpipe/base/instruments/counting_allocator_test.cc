#include "gpipe/base/instruments/counting_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

namespace gpipe::instruments {
namespace {

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
