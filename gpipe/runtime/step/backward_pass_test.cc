#include "gpipe/runtime/step/backward_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gpipe/phase.h"
#include "gpipe/runtime/step/forward_pass.h"
#include "gpipe/runtime/step/passes_testing.h"
#include "gpipe/runtime/step/small_stages_testing.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using testing::B;
using testing::error_of;
using testing::F;
using testing::inputs;
using testing::is;
using testing::kAlways;
using testing::kNever;
using testing::layer;
using testing::numbers;
using testing::run;
using testing::Scale;
using testing::stages_of;
using torch::Tensor;
using torch::nn::AnyModule;

// A pipeline of two stages, x * 3 * 5, with two micro-batches after their
// forward.
struct Forwarded {
  Scale first{3}, second{5};
  Stages stages = stages_of({AnyModule(first), AnyModule(second)});
  Step step;
  ForwardPass pass;
  explicit Forwarded(
      const std::function<bool(int64_t, int64_t)>& checkpointed = kNever)
      : step(stages, 2, checkpointed), pass(stages, step, inputs(2), false) {
    for (const int i : {0, 1}) {
      for (const int j : {0, 1}) run(pass, F(j, i));
    }
  }
  void begin(BackwardPass& back) const {
    for (const int i : {0, 1}) {
      back.begin(i, {numbers(1, 1).to(testing::device(1))});
    }
  }
  // The sums of the leaves, first the first stage's.
  std::vector<Tensor> sums(BackwardPass& back) const {
    return back.take_leaf_grads(step.shared_leaves());
  }
};

TEST(BackwardPass, SumsLeavesAndGivesTheGradientsOfTheInput) {
  Forwarded two;
  BackwardPass back(two.stages, two.step, {});
  EXPECT_FALSE(back.ready(B(1, 1)));
  two.begin(back);
  EXPECT_FALSE(back.ready(B(0, 1)));
  for (const int i : {1, 0}) {
    for (const int j : {1, 0}) run(back, B(j, i));
  }
  EXPECT_TRUE(is(back.input_grads()[0].at(0), 15, 15));
  EXPECT_TRUE(is(back.input_grads()[1].at(0), 15, 15));
  const auto sums = two.sums(back);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0].item<float>(), 5 * 33);
  EXPECT_EQ(sums[1].item<float>(), 3 * 33);
  EXPECT_FALSE(two.first->weight.grad().defined());
  EXPECT_TRUE(two.step.cells[0][0].leaves().empty());  // released
}

TEST(BackwardPass, DoesNothingForStagesBeforeTheFirstThatIsWanted) {
  Forwarded two;
  BackwardPass::Options options;
  options.input_wanted = false;
  options.leaf_wanted = {{false}, {true}};
  BackwardPass back(two.stages, two.step, options);
  EXPECT_TRUE(back.ready(B(0, 0)));  // waits for nothing
  two.begin(back);
  for (const int i : {1, 0}) {
    run(back, B(1, i));
    run(back, B(0, i));
    EXPECT_TRUE(back.input_grads()[i].empty());
    EXPECT_TRUE(two.step.cells[0][i].leaves().empty());
  }
  const std::vector<SharedLeaf> leaves = {{two.first->weight, {{0, 0}}},
                                          {two.second->weight, {{1, 0}}}};
  const auto sums = back.take_leaf_grads(leaves);
  EXPECT_FALSE(sums[0].defined());
  EXPECT_EQ(sums[1].item<float>(), 99);
}

TEST(BackwardPass, RunsAgainIfTheGraphIsKept) {
  Forwarded two;
  for (const bool keep : {true, false}) {
    BackwardPass::Options options;
    options.keep_graph = keep;
    BackwardPass back(two.stages, two.step, options);
    two.begin(back);
    for (const int i : {1, 0}) {
      for (const int j : {1, 0}) run(back, B(j, i));
    }
    EXPECT_EQ(two.step.cells[1][0].leaves().size(), keep ? 1u : 0u);
    if (keep) EXPECT_EQ(two.sums(back)[0].item<float>(), 165);
    EXPECT_TRUE(is(back.input_grads()[0].at(0), 15, 15));
  }
}

TEST(BackwardPass, InTwoPartsGivesTheInputFirst) {
  Forwarded two;
  const auto leaves = two.step.shared_leaves();
  BackwardPass back(two.stages, two.step, {});
  two.begin(back);
  for (const int i : {1, 0}) {
    for (const int j : {1, 0}) run(back, {j, ActionKind::kBackwardInput, i});
  }
  EXPECT_TRUE(is(back.input_grads()[0].at(0), 15, 15));
  for (const int i : {1, 0}) {
    for (const int j : {1, 0}) run(back, {j, ActionKind::kBackwardWeight, i});
  }
  const auto sums = back.take_leaf_grads(leaves);
  EXPECT_EQ(sums[0].item<float>(), 165);
  EXPECT_EQ(sums[1].item<float>(), 99);
}

TEST(BackwardPass, ARecomputeNeedsNoGradientAndSaysWhatItIs) {
  std::string seen;
  Stages stages = stages_of({layer([&](const Tensor& x) {
    seen += is_recomputing() ? "r" : "f";
    seen += torch::GradMode::is_enabled() ? "+ " : "- ";
    return x * 2;
  })});
  Step step(stages, 1, kAlways);
  ForwardPass forward(stages, step, inputs(1), false);
  run(forward, F(0, 0));
  BackwardPass back(stages, step, {});
  const Action recompute{0, ActionKind::kRecompute, 0};
  {
    const torch::NoGradGuard no_grad;  // as in a backward
    run(back, recompute);
  }
  EXPECT_EQ(seen, "f+ r+ ");
  back.begin(0, {numbers(1, 1).to(testing::device())});
  run(back, B(0, 0));
  EXPECT_TRUE(is(back.input_grads()[0].at(0), 2, 2));
  EXPECT_EQ(back.place(recompute).place(),
            "partition 0, micro-batch 0, recompute");
  EXPECT_EQ(back.place(B(0, 0)).place(),
            "partition 0, micro-batch 0, backward");
}

TEST(BackwardPass, NamesGradientsThatAreNotFinite) {
  Forwarded two;
  BackwardPass::Options options;
  options.check_finite = true;
  BackwardPass back(two.stages, two.step, options);
  back.begin(0, {numbers(std::numeric_limits<double>::infinity(), 1)
                     .to(testing::device(1))});
  back.fetch(B(1, 0), nullptr);
  const std::string error = error_of([&] { back.perform(B(1, 0)); });
  EXPECT_THAT(error, ::testing::StartsWith("gpipe::NonFiniteError: "));
  EXPECT_THAT(error, ::testing::HasSubstr("parameter '1.weight'"));
  EXPECT_THAT(error, ::testing::HasSubstr("the input of partition 1"));
  EXPECT_EQ(back.describe_leaf(0, two.first->weight), "parameter '0.weight'");
  EXPECT_EQ(back.describe_leaf(0, two.second->weight),
            "a tensor that a layer has captured");
}

}  // namespace
}  // namespace gpipe::internal
