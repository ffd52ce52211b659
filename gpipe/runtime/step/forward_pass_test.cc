#include "gpipe/runtime/step/forward_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "gpipe/phase.h"
#include "gpipe/runtime/step/backward_pass.h"
#include "gpipe/runtime/step/passes_testing.h"
#include "gpipe/runtime/step/small_stages_testing.h"
#include "gpipe/skip/tracker.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using testing::B;
using testing::edges_of;
using ::testing::ElementsAre;
using testing::F;
using testing::inputs;
using testing::is;
using testing::kNever;
using testing::layer;
using testing::numbers;
using testing::Remote;
using testing::run;
using testing::Scale;
using testing::stages_of;
using torch::Tensor;
using torch::nn::AnyModule;

TEST(ForwardPass, AStageIsReadyWhenTheOneBeforeHasRun) {
  Stages stages = stages_of({AnyModule(Scale(3)), AnyModule(Scale(5))});
  Step step(stages, 2, kNever);
  ForwardPass pass(stages, step, inputs(2), false);
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

TEST(ForwardPass, LayersKnowMicrobatchAndPhase) {
  std::string seen;
  Stages stages = stages_of({layer([&](const Tensor& x) {
    seen += std::to_string(current_microbatch().value_or(-1)) +
            (is_checkpointing() ? "c " : " ");
    return x * 2;
  })});
  Step step(stages, 2, [](int64_t, int64_t i) { return i == 0; });
  ForwardPass pass(stages, step, inputs(2), false);
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

TEST(ForwardPass, SkipTensorsGoPastTheStagesBetween) {
  Stages stages = stages_of(skip_layers(false, false));
  Step step(stages, 1, kNever);
  ForwardPass pass(stages, step, inputs(1), false);
  run(pass, F(0, 0));
  EXPECT_FALSE(pass.ready(F(2, 0)));  // the skip tensor alone is not enough
  run(pass, F(1, 0));
  run(pass, F(2, 0));
  EXPECT_TRUE(is(pass.outputs()[0].boundary.at(0).tensor, 5, 10));

  BackwardPass back(stages, step, {});
  back.begin(0, {numbers(1, 7).to(testing::device(2))});
  run(back, B(2, 0));
  EXPECT_FALSE(back.ready(B(0, 0)));
  run(back, B(1, 0));
  run(back, B(0, 0));
  EXPECT_TRUE(is(back.input_grads()[0].at(0), 5, 35));
}

TEST(ForwardPass, SendsToRemoteStagesSkipsFirst) {
  Stages stages = stages_of(skip_layers(false, true));
  stages.partitions[1].remote = true;
  Step step(stages, 1, kNever);
  Remote remote;
  ForwardPass pass(stages, step, inputs(1), false, &remote);
  run(pass, F(0, 0));
  EXPECT_THAT(edges_of(remote.sent),
              ElementsAre("0>2 link 0 of 0", "0>1 link -1 of 0"));
  EXPECT_TRUE(is(remote.sent[0].content.at(0).tensor, 2, 4));
  EXPECT_TRUE(is(remote.sent[1].content.at(0).tensor, 1, 2));
  EXPECT_TRUE(remote.sent[1].content[0].requires_grad);
}

TEST(ForwardPass, WaitsForWhatRemoteStagesDeliver) {
  Stages stages = stages_of(skip_layers(true, false));
  stages.partitions[1].remote = true;
  Step step(stages, 1, kNever);
  Remote remote;
  ForwardPass pass(stages, step, {}, false, &remote);
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
  EXPECT_EQ(remote.checks, 2);

  BackwardPass back(stages, step, {}, &remote);
  back.begin(0, {numbers(1, 7).to(testing::device(2))});
  run(back, B(2, 0));
  EXPECT_THAT(edges_of(remote.sent),
              ElementsAre("2>0 link 0 of 0 back", "2>1 link -1 of 0 back"));
  EXPECT_TRUE(is(remote.sent[1].content.at(0).tensor, 1, 7));
}

}  // namespace
}  // namespace gpipe::internal
