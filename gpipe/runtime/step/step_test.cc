#include "gpipe/runtime/step/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>
#include <thread>

#include "gpipe/runtime/step/testing.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::kNever;
using testing::layer;
using ::testing::Pair;
using testing::Scale;
using testing::stages_of;
using torch::Tensor;
using torch::nn::AnyModule;

// Runs the forward of cell (i, j) of `step` on ones.
Tensor forward(Step& step, int64_t j, int64_t i) {
  Activations input;
  input.boundary = {{torch::ones({2}).to(testing::device(j)), true, false}};
  return step.cells[j][i]
      .forward(std::move(input), step.seed, false)
      .boundary[0]
      .tensor;
}

TEST(Stages, LinkEachExportToItsImport) {
  auto layers = testing::layers_of(
      {AnyModule(Scale(1)), AnyModule(Scale(1)), AnyModule(Scale(1))});
  const SkipKey a{Namespace::none(), "a"}, b{Namespace::none(), "b"};
  layers[0].skips.stash = {b, a};
  layers[1].skips.pop = {b};
  layers[2].skips.pop = {a};
  const Stages stages = stages_of(std::move(layers));
  EXPECT_EQ(stages.size(), 3);
  ASSERT_EQ(stages.links.size(), 2u);
  const auto numbers = [](const SkipLink& link) {
    return std::vector<int64_t>{link.from, link.exported, link.to,
                                link.imported};
  };
  EXPECT_THAT(numbers(stages.links[0]), ElementsAre(0, 0, 1, 0));
  EXPECT_THAT(numbers(stages.links[1]), ElementsAre(0, 1, 2, 0));
}

TEST(Step, HasACellPerMicrobatchOfEachStageOfThisProcess) {
  Stages stages =
      stages_of({AnyModule(Scale(1)), AnyModule(), AnyModule(Scale(1))});
  const Step step(stages, 3, [](int64_t stage, int64_t microbatch) {
    return stage == 2 && microbatch == 1;
  });
  EXPECT_EQ(step.microbatches(), 3);
  EXPECT_EQ(step.cells[0].size(), 3u);
  EXPECT_EQ(step.cells[1].size(), 0u);
  ASSERT_EQ(step.cells[2].size(), 3u);
  EXPECT_FALSE(step.cells[0][1].checkpointed());
  EXPECT_FALSE(step.cells[2][0].checkpointed());
  EXPECT_TRUE(step.cells[2][1].checkpointed());
}

TEST(Step, RandomNumbersCountTheMicrobatchesBefore) {
  Stages stages =
      stages_of({layer([](const Tensor& x) { return torch::rand_like(x); })});
  Step whole(stages, 3, kNever), part(stages, 1, kNever, /*before=*/2);
  whole.seed.set(7);
  part.seed.set(7);
  const Tensor first = forward(whole, 0, 0), last = forward(whole, 0, 2);
  const Tensor of_part = forward(part, 0, 0);
  EXPECT_TRUE(of_part.equal(last));
  EXPECT_FALSE(of_part.equal(first));
}

TEST(Step, NumbersTheLeavesOfEachPartition) {
  if (testing::device(0) != testing::device(1)) {
    GTEST_SKIP() << "partitions on different devices share no parameter";
  }
  Scale shared(2), own(3);
  own->to(testing::device(1));  // stages_of() does not see it
  const auto both =
      layer([=](const Tensor& x) { return x * own->weight * shared->weight; });
  Stages stages = stages_of({AnyModule(shared), both});
  Step step(stages, 2, kNever);
  for (const int64_t j : {0, 1}) {
    for (const int64_t i : {0, 1}) {
      forward(step, j, i);
      step.number_leaves(j, i);
    }
  }
  EXPECT_THAT(step.cells[0][1].leaf_numbers(), ElementsAre(0));
  ASSERT_EQ(step.leaves[1].list.size(), 2u);
  EXPECT_EQ(step.cells[1][0].leaf_numbers(), step.cells[1][1].leaf_numbers());
  EXPECT_TRUE(step.is_shared(0, shared->weight));
  EXPECT_TRUE(step.is_shared(1, shared->weight));
  EXPECT_FALSE(step.is_shared(1, own->weight));

  const auto leaves = step.shared_leaves();
  ASSERT_EQ(leaves.size(), 2u);
  EXPECT_TRUE(leaves[0].tensor.is_same(shared->weight));
  const int64_t number = step.leaves[1].list[0].is_same(own->weight) ? 1 : 0;
  EXPECT_THAT(leaves[0].places, ElementsAre(Pair(0, 0), Pair(1, number)));
  EXPECT_TRUE(leaves[1].tensor.is_same(own->weight));
  EXPECT_THAT(leaves[1].places, ElementsAre(Pair(1, 1 - number)));
}

TEST(Step, GivesTheGraphOfACapturedTensorToOnePartition) {
  const Tensor w = torch::ones({1}).requires_grad_();
  Tensor captured;
  std::thread([&] { captured = w.exp(); }).join();
  const auto uses_it = [&] {
    return layer([=](const Tensor& x) { return x * captured.to(x.device()); });
  };
  Stages stages = stages_of({uses_it(), AnyModule(Scale(1)), uses_it()});
  Step step(stages, 2, kNever);
  for (const int64_t i : {0, 1}) {
    forward(step, 0, i);
    step.number_leaves(0, i);
  }
  forward(step, 2, 0);
  EXPECT_THAT(
      error_of([&] { step.number_leaves(2, 0); }),
      ::testing::StartsWith(
          "c10::Error: layers of partitions 0 and 2 use a tensor that has been "
          "computed outside of the pipeline (by ExpBackward0)"));
}

TEST(Step, KnowsThePlaceOfAFailure) {
  Stages stages =
      stages_of({AnyModule(Scale(1)), layer([](const Tensor&) -> Tensor {
                   throw std::runtime_error("fails");
                 })});
  Step step(stages, 2, kNever);
  EXPECT_NE(error_of([&] { forward(step, 1, 1); }), "");
  const auto place = [&](int stage, Phase phase) {
    return step.failure_at({stage, ActionKind::kForward, 1}, phase).place();
  };
  EXPECT_EQ(place(1, Phase::kForward),
            "partition 1, micro-batch 1, forward, layer '1'");
  EXPECT_EQ(place(0, Phase::kBackward), "partition 0, micro-batch 1, backward");
}

}  // namespace
}  // namespace gpipe::internal
