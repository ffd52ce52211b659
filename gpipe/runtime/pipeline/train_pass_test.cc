#include "gpipe/runtime/pipeline/train_pass.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "gpipe/runtime/step/passes_testing.h"
#include "gpipe/runtime/step/small_stages_testing.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::B;
using testing::edges_of;
using ::testing::ElementsAre;
using testing::error_of;
using testing::F;
using testing::inputs;
using testing::is;
using testing::kNever;
using testing::numbers;
using testing::Remote;
using testing::run;
using testing::Scale;
using testing::stages_of;
using torch::nn::AnyModule;

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
};

TEST(TrainPass, TheLastStageBeginsItsBackwardWithTheWeightOfTheLoss) {
  Training training;
  TrainPass pass(training.stages, training.step, inputs(2), false,
                 training.weights, {});
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
  EXPECT_TRUE(is(pass.backward().input_grads()[0].at(0), 3.75, 3.75));
  EXPECT_TRUE(is(pass.backward().input_grads()[1].at(0), 7.5, 7.5));
  const auto sums =
      pass.backward().take_leaf_grads(training.step.shared_leaves());
  EXPECT_EQ(sums[0].item<float>(), 5 * (3 * 0.25 + 30 * 0.5));
  EXPECT_EQ(sums[1].item<float>(), 3 * (3 * 0.25 + 30 * 0.5));
  EXPECT_EQ(pass.place(F(0, 1)).place(), "partition 0, micro-batch 1, forward");
  EXPECT_EQ(pass.place(B(0, 1)).place(),
            "partition 0, micro-batch 1, backward");
}

// What is copied is in the tests of KeptTensors.
TEST(TrainPass, CopiesOfACellWaitForNoOtherRank) {
  Training training;
  TrainPass pass(training.stages, training.step, inputs(2), false,
                 training.weights, {});
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
  EXPECT_TRUE(is(pass.backward().input_grads()[0].at(0), 3.75, 3.75));
  EXPECT_EQ(pass.place(away).place(), "partition 0, micro-batch 0, offload");
  EXPECT_EQ(pass.place(back).place(), "partition 0, micro-batch 0, reload");
}

TEST(TrainPass, RefusesALossWithoutGraph) {
  Training training;
  training.loss = [](Value output, Value) {
    return output.tensors()[0].detach().sum();
  };
  TrainPass pass(training.stages, training.step, inputs(2), false,
                 training.weights, {});
  run(pass, F(0, 1));
  run(pass, F(1, 1));
  EXPECT_EQ(error_of([&] { pass.perform(B(1, 1)); }),
            "c10::Error: the loss of micro-batch 1 does not require grad: it "
            "depends on no parameter or input that does. Use a forward-only "
            "schedule to run without backward");
}

TEST(TrainPass, DeliversToTheHalfThatTheEdgeNames) {
  Stages stages = stages_of({AnyModule(Scale(3)), AnyModule()});
  Step step(stages, 1, kNever);
  Remote remote;
  const std::vector<double> weights{1};
  TrainPass pass(stages, step, inputs(1), false, weights, {}, &remote);
  run(pass, F(0, 0));
  EXPECT_THAT(edges_of(remote.sent), ElementsAre("0>1 link -1 of 0"));
  EXPECT_FALSE(pass.ready(B(0, 0)));
  pass.deliver({true, 1, 0, -1, 0}, Value::Kind::kTensor,
               {{numbers(5, 7).to(testing::device()), false, false}}, Event());
  run(pass, B(0, 0));
  EXPECT_TRUE(is(pass.backward().input_grads()[0].at(0), 15, 21));
}

}  // namespace
}  // namespace gpipe::internal
