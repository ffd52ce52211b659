#include "training/program/step_data.h"

#include <ATen/ops/cat.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "training/program/make_task.h"
#include "training/program/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

std::unique_ptr<Task> text_task(int64_t batch, int64_t bucket) {
  Options options = small_options("transformer");
  options.batch = batch;
  options.bucket = bucket;
  return make_task(options);
}

void expect_equal(const Sample& a, const Sample& b) {
  EXPECT_TRUE(a.input.equal(b.input));
  EXPECT_TRUE(a.target.equal(b.target));
}

TEST(StepDataTest, MiniBatchesAreOneLargeMiniBatchInAnyNumberOfReplicas) {
  const auto large = text_task(12, 0), small = text_task(4, 0);
  const StepData whole = load_step(*large, {.batch = 12}, 2);
  ASSERT_EQ(whole.parts.size(), 1u);
  EXPECT_FALSE(whole.split);
  EXPECT_EQ(whole.items, 12 * 12);
  for (const int64_t replicas : {1, 2, 3, 4}) {
    std::vector<at::Tensor> inputs, targets;
    for (int64_t replica = 0; replica < replicas; ++replica) {
      const StepData data = load_step(*small,
                                      {.batch = 4,
                                       .accumulate = 3,
                                       .replica = replica,
                                       .replicas = replicas},
                                      2);
      EXPECT_EQ(data.items, whole.items);
      ASSERT_EQ(data.parts.size(), 1u);
      inputs.push_back(data.parts[0].input);
      targets.push_back(data.parts[0].target);
      EXPECT_EQ(inputs.back().size(0), 12 / replicas);
    }
    expect_equal({at::cat(inputs), at::cat(targets)}, whole.parts[0]);
  }
}

TEST(StepDataTest, PartsDoNotDependOnTheReplicasWhichTakeThemInTurn) {
  const auto large = text_task(12, 4), small = text_task(4, 4);
  const StepData whole = load_step(*large, {.batch = 12, .microbatches = 6}, 2);
  ASSERT_EQ(whole.parts.size(), 6u);
  EXPECT_TRUE(whole.split);
  for (const int64_t replicas : {1, 2, 3}) {
    for (int64_t replica = 0; replica < replicas; ++replica) {
      const StepData data = load_step(*small,
                                      {.batch = 4,
                                       .accumulate = 3,
                                       .replica = replica,
                                       .replicas = replicas,
                                       .microbatches = 6 / replicas},
                                      2);
      EXPECT_EQ(data.items, whole.items);
      ASSERT_EQ(static_cast<int64_t>(data.parts.size()), 6 / replicas);
      for (std::size_t k = 0; k < data.parts.size(); ++k) {
        expect_equal(data.parts[k], whole.parts[k * replicas + replica]);
      }
    }
  }
}

}  // namespace
}  // namespace gpipe::train_program
