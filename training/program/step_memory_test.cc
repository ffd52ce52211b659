#include "training/program/step_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

namespace gpipe::train_program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace gpipe::train_program
