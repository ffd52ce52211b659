#include "gpipe/runtime/device/threads.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

namespace gpipe::internal {
namespace {

TEST(ShareOfThreads, IsAnEqualPartForEachCpuPartitionAndAtLeastOne) {
  const int before = at::get_num_threads();
  at::set_num_threads(7);
  const c10::Device cpu(c10::kCPU), other(c10::kHPU, 0);
  EXPECT_EQ(share_of_threads({cpu}), 7);
  EXPECT_EQ(share_of_threads({cpu, cpu}), 3);
  EXPECT_EQ(share_of_threads({other, cpu, other, cpu}), 3);
  EXPECT_EQ(share_of_threads({other}), 7);
  EXPECT_EQ(share_of_threads({}), 7);
  EXPECT_EQ(share_of_threads(std::vector<c10::Device>(8, cpu)), 1);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace gpipe::internal
