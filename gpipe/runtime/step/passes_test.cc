#include "gpipe/runtime/step/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <limits>

#include "gpipe/phase.h"
#include "gpipe/runtime/step/testing.h"
#include "gpipe/skip/skippable.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using testing::B;
using testing::edges_of;
using ::testing::ElementsAre;
using testing::error_of;
using testing::F;
using testing::inputs;
using testing::is;
using testing::kAlways;
using testing::kNever;
using testing::layer;
using testing::numbers;
using testing::Remote;
using testing::run;
using testing::Scale;
using testing::stages_of;
using torch::Tensor;
using torch::nn::AnyModule;

TEST(StepPassForward, AStageIsReadyWhenTheOneBeforeHasRun) {
  Stages stages = stages_of({AnyModule(Scale(3)), AnyModule(Scale(5))});
  Step step(stages, 2, kNever);
  StepPass pass(stages, step, {});
  pass.begin_forward(inputs(2), false);
  EXPECT_FALSE(pass.ready(F(1, 0)));
  run(pass, F(0, 1));
  EXPECT_FALSE(pass.ready(F(1, 0)));
  run(pass, F(1, 1));
  run(pass, F(0, 0));
  run(pass, F(1, 0));
  EXPECT_TRUE(is(pass.outputs()[0].boundary.at(0).tensor, 15, 30));
  EXPECT_TRUE(is(pass.outputs()[1].boundary.at(0).tensor, 150, 300));
  EXPECT_EQ(pass.outputs()[1].boundary[0].tensor.device(), testing::device(1));
  EXPECT_EQ(step.leaves[1].list.size(), 1u);
  EXPECT_EQ(pass.place(F(1, 1)).place(), "partition 1, micro-batch 1, forward");
}

TEST(StepPassForward, LayersKnowMicrobatchAndPhase) {
  std::string seen;
  Stages stages = stages_of({layer([&](const Tensor& x) {
    seen += std::to_string(current_microbatch().value_or(-1)) +
            (is_checkpointing() ? "c " : " ");
    return x * 2;
  })});
  Step step(stages, 2, [](int64_t, int64_t i) { return i == 0; });
  StepPass pass(stages, step, {});
  pass.begin_forward(inputs(2), false);
  run(pass, F(0, 1));
  run(pass, F(0, 0));
  EXPECT_EQ(seen, "1 0c ");
  EXPECT_EQ(pass.place(F(0, 0)).place(),
            "partition 0, micro-batch 0, forward (checkpointed)");
}

// Three stages of which the first stashes twice its input, and the last adds
// it to its own input.
std::vector<Layer> skip_layers(bool first_is_remote, bool last_is_remote) {
  const SkipKey key{Namespace::none(), "skip"};
  auto layers =
      testing::layers_of({layer([=](const Tensor& x) {
                            current_skip_tracker().save(key, x * 2);
                            return x * 1;
                          }),
                          AnyModule(Scale(3)), layer([=](const Tensor& x) {
                            return x + *current_skip_tracker().load(key);
                          })});
  if (first_is_remote) layers[0].module = AnyModule();
  if (last_is_remote) layers[2].module = AnyModule();
  layers[0].skips.stash = {key};
  layers[2].skips.pop = {key};
  return layers;
}

TEST(StepPassForward, SkipTensorsGoPastTheStagesBetween) {
  Stages stages = stages_of(skip_layers(false, false));
  Step step(stages, 1, kNever);
  StepPass pass(stages, step, {});
  pass.begin_forward(inputs(1), false);
  run(pass, F(0, 0));
  EXPECT_FALSE(pass.ready(F(2, 0)));  // the skip tensor alone is not enough
  run(pass, F(1, 0));
  run(pass, F(2, 0));
  EXPECT_TRUE(is(pass.outputs()[0].boundary.at(0).tensor, 5, 10));

  StepPass back(stages, step, {});
  back.begin_backward(0, {numbers(1, 7).to(testing::device(2))});
  run(back, B(2, 0));
  EXPECT_FALSE(back.ready(B(0, 0)));
  run(back, B(1, 0));
  run(back, B(0, 0));
  EXPECT_TRUE(is(back.input_grads()[0].at(0), 5, 35));
}

TEST(StepPassForward, SendsToRemoteStagesSkipsFirst) {
  Stages stages = stages_of(skip_layers(false, true));
  stages.partitions[1].remote = true;
  Step step(stages, 1, kNever);
  Remote remote;
  StepPass pass(stages, step, {}, &remote);
  pass.begin_forward(inputs(1), false);
  run(pass, F(0, 0));
  EXPECT_THAT(edges_of(remote.sent),
              ElementsAre("0>2 link 0 of 0", "0>1 link -1 of 0"));
  EXPECT_TRUE(is(remote.sent[0].content.at(0).tensor, 2, 4));
  EXPECT_TRUE(is(remote.sent[1].content.at(0).tensor, 1, 2));
  EXPECT_TRUE(remote.sent[1].content[0].requires_grad);
}

TEST(StepPassForward, WaitsForWhatRemoteStagesDeliver) {
  Stages stages = stages_of(skip_layers(true, false));
  stages.partitions[1].remote = true;
  Step step(stages, 1, kNever);
  Remote remote;
  StepPass pass(stages, step, {}, &remote);
  EXPECT_FALSE(pass.ready(F(2, 0)));
  pass.deliver({false, 0, 2, 0, 0}, Value::Kind::kTensor,
               {{numbers(2, 4), true, false}}, Event());
  EXPECT_FALSE(pass.ready(F(2, 0)));
  EXPECT_EQ(remote.checks, 2);
  pass.deliver({false, 1, 2, -1, 0}, Value::Kind::kTensor,
               {{numbers(3, 6), true, false}}, Event());
  run(pass, F(2, 0));
  EXPECT_TRUE(is(pass.outputs()[0].boundary.at(0).tensor, 5, 10));
  EXPECT_THAT(remote.waited, ElementsAre(1, 1, -1));
  EXPECT_EQ(remote.checks, 3);

  StepPass back(stages, step, {}, &remote);
  back.begin_backward(0, {numbers(1, 7).to(testing::device(2))});
  run(back, B(2, 0));
  EXPECT_THAT(edges_of(remote.sent),
              ElementsAre("2>0 link 0 of 0 back", "2>1 link -1 of 0 back"));
  EXPECT_TRUE(is(remote.sent[1].content.at(0).tensor, 1, 7));
}

// A pipeline of two stages, x * 3 * 5, with two micro-batches after their
// forward.
struct Forwarded {
  Scale first{3}, second{5};
  Stages stages = stages_of({AnyModule(first), AnyModule(second)});
  Step step;
  StepPass pass;
  explicit Forwarded(
      const std::function<bool(int64_t, int64_t)>& checkpointed = kNever)
      : step(stages, 2, checkpointed), pass(stages, step, {}) {
    pass.begin_forward(inputs(2), false);
    for (const int i : {0, 1}) {
      for (const int j : {0, 1}) run(pass, F(j, i));
    }
  }
  void begin(StepPass& back) const {
    for (const int i : {0, 1}) {
      back.begin_backward(i, {numbers(1, 1).to(testing::device(1))});
    }
  }
  // The sums of the leaves, first the first stage's.
  std::vector<Tensor> sums(StepPass& back) const {
    return back.take_leaf_grads(step.shared_leaves());
  }
};

TEST(StepPassBackward, SumsLeavesAndGivesTheGradientsOfTheInput) {
  Forwarded two;
  StepPass back(two.stages, two.step, {});
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

TEST(StepPassBackward, DoesNothingForStagesBeforeTheFirstThatIsWanted) {
  Forwarded two;
  StepPass::Options options;
  options.input_wanted = false;
  options.leaf_wanted = {{false}, {true}};
  StepPass back(two.stages, two.step, options);
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

TEST(StepPassBackward, RunsAgainIfTheGraphIsKept) {
  Forwarded two;
  for (const bool keep : {true, false}) {
    StepPass::Options options;
    options.keep_graph = keep;
    StepPass back(two.stages, two.step, options);
    two.begin(back);
    for (const int i : {1, 0}) {
      for (const int j : {1, 0}) run(back, B(j, i));
    }
    EXPECT_EQ(two.step.cells[1][0].leaves().size(), keep ? 1u : 0u);
    if (keep) {
      EXPECT_EQ(two.sums(back)[0].item<float>(), 165);
    }
    EXPECT_TRUE(is(back.input_grads()[0].at(0), 15, 15));
  }
}

TEST(StepPassBackward, InTwoPartsGivesTheInputFirst) {
  Forwarded two;
  const auto leaves = two.step.shared_leaves();
  StepPass back(two.stages, two.step, {});
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

TEST(StepPassBackward, ARecomputeNeedsNoGradientAndSaysWhatItIs) {
  std::string seen;
  Stages stages = stages_of({layer([&](const Tensor& x) {
    seen += is_recomputing() ? "r" : "f";
    seen += torch::GradMode::is_enabled() ? "+ " : "- ";
    return x * 2;
  })});
  Step step(stages, 1, kAlways);
  StepPass forward(stages, step, {});
  forward.begin_forward(inputs(1), false);
  run(forward, F(0, 0));
  StepPass back(stages, step, {});
  const Action recompute{0, ActionKind::kRecompute, 0};
  {
    const torch::NoGradGuard no_grad;  // as in a backward
    run(back, recompute);
  }
  EXPECT_EQ(seen, "f+ r+ ");
  back.begin_backward(0, {numbers(1, 1).to(testing::device())});
  run(back, B(0, 0));
  EXPECT_TRUE(is(back.input_grads()[0].at(0), 2, 2));
  EXPECT_EQ(back.place(recompute).place(),
            "partition 0, micro-batch 0, recompute");
  EXPECT_EQ(back.place(B(0, 0)).place(),
            "partition 0, micro-batch 0, backward");
}

TEST(StepPassBackward, NamesGradientsThatAreNotFinite) {
  Forwarded two;
  StepPass::Options options;
  options.check_finite = true;
  StepPass back(two.stages, two.step, options);
  back.begin_backward(0, {numbers(std::numeric_limits<double>::infinity(), 1)
                              .to(testing::device(1))});
  back.fetch(B(1, 0), nullptr);
  const std::string error = error_of([&] { back.perform(B(1, 0)); });
  EXPECT_THAT(error, ::testing::StartsWith("gpipe::NonFiniteError: "));
  EXPECT_THAT(error, ::testing::HasSubstr("parameter '1.weight'"));
  EXPECT_THAT(error, ::testing::HasSubstr("the input of partition 1"));
  EXPECT_EQ(two.stages.describe_leaf(0, two.first->weight),
            "parameter '0.weight'");
  EXPECT_EQ(two.stages.describe_leaf(0, two.second->weight),
            "a tensor that a layer has captured");
}

// A step whose last stage ends in the sum of its output.
struct Training {
  Scale first{3}, second{5};
  Stages stages = stages_of({AnyModule(first), AnyModule(second)});
  Step step{stages, 2, kNever};
  LossFunction loss = [](Value output, Value) {
    return output.tensors()[0].sum();
  };
  LossHead head;
  std::vector<double> weights{0.25, 0.5};
  Training() {
    head.function = &loss;
    for (Cell& cell : step.cells[1]) cell.set_head(&head);
  }
  StepPass::Options options() const {
    StepPass::Options options;
    options.loss_weights = &weights;
    return options;
  }
};

TEST(StepPassTraining, TheLastStageBeginsItsBackwardWithTheWeightOfTheLoss) {
  Training training;
  StepPass pass(training.stages, training.step, training.options());
  pass.begin_forward(inputs(2), false);
  run(pass, F(0, 0));
  EXPECT_FALSE(pass.ready(B(0, 0)));
  run(pass, F(1, 0));
  EXPECT_EQ(pass.outputs()[0].boundary.at(0).tensor.item<float>(), 45);
  run(pass, B(1, 0));
  run(pass, F(0, 1));
  run(pass, B(0, 0));
  run(pass, F(1, 1));
  run(pass, B(1, 1));
  run(pass, B(0, 1));
  EXPECT_TRUE(is(pass.input_grads()[0].at(0), 3.75, 3.75));
  EXPECT_TRUE(is(pass.input_grads()[1].at(0), 7.5, 7.5));
  const auto sums = pass.take_leaf_grads(training.step.shared_leaves());
  EXPECT_EQ(sums[0].item<float>(), 5 * (3 * 0.25 + 30 * 0.5));
  EXPECT_EQ(sums[1].item<float>(), 3 * (3 * 0.25 + 30 * 0.5));
  EXPECT_EQ(pass.place(F(0, 1)).place(), "partition 0, micro-batch 1, forward");
  EXPECT_EQ(pass.place(B(0, 1)).place(),
            "partition 0, micro-batch 1, backward");
}

// What is copied is in the tests of KeptTensors.
TEST(StepPassTraining, CopiesOfACellWaitForNoOtherRank) {
  Training training;
  StepPass pass(training.stages, training.step, training.options());
  pass.begin_forward(inputs(2), false);
  const Action away{0, ActionKind::kOffload, 0};
  const Action back{0, ActionKind::kReload, 0};
  run(pass, F(0, 0));
  run(pass, away);
  run(pass, back);
  run(pass, F(1, 0));
  run(pass, {1, ActionKind::kOffload, 0});
  run(pass, {1, ActionKind::kReload, 0});
  run(pass, B(1, 0));
  run(pass, B(0, 0));
  EXPECT_TRUE(is(pass.input_grads()[0].at(0), 3.75, 3.75));
  EXPECT_EQ(pass.place(away).place(), "partition 0, micro-batch 0, offload");
  EXPECT_EQ(pass.place(back).place(), "partition 0, micro-batch 0, reload");
}

TEST(StepPassTraining, RefusesALossWithoutGraph) {
  Training training;
  training.loss = [](Value output, Value) {
    return output.tensors()[0].detach().sum();
  };
  StepPass pass(training.stages, training.step, training.options());
  pass.begin_forward(inputs(2), false);
  run(pass, F(0, 1));
  run(pass, F(1, 1));
  EXPECT_EQ(error_of([&] { pass.perform(B(1, 1)); }),
            "c10::Error: the loss of micro-batch 1 does not require grad: it "
            "depends on no parameter or input that does. If it counts nothing, "
            "return a sum with a graph, such as output.sum() * 0. Use a "
            "forward-only schedule to run without backward");
}

TEST(StepPassTraining, DeliversInTheDirectionThatTheEdgeNames) {
  Stages stages = stages_of({AnyModule(Scale(3)), AnyModule()});
  Step step(stages, 1, kNever);
  Remote remote;
  const std::vector<double> weights{1};
  StepPass::Options options;
  options.loss_weights = &weights;
  StepPass pass(stages, step, options, &remote);
  pass.begin_forward(inputs(1), false);
  run(pass, F(0, 0));
  EXPECT_THAT(edges_of(remote.sent), ElementsAre("0>1 link -1 of 0"));
  EXPECT_FALSE(pass.ready(B(0, 0)));
  pass.deliver({true, 1, 0, -1, 0}, Value::Kind::kTensor,
               {{numbers(5, 7).to(testing::device()), false, false}}, Event());
  run(pass, B(0, 0));
  EXPECT_TRUE(is(pass.input_grads()[0].at(0), 15, 21));
}

}  // namespace
}  // namespace gpipe::internal
