#include "gpipe/runtime/pipeline/step_peers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>
#include <vector>

#include "gpipe/runtime/pipeline/train_step.h"
#include "gpipe/runtime/step/small_stages_testing.h"
#include "gpipe/schedule/generators/fill_drain.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

using testing::error_of;

// A pipeline without other ranks.
struct Alone : StepPeers {
  StepPlan plan(const Schedule&, Checkpoint) override {
    throw std::logic_error("not called");
  }
};

// A step of one stage, x * 3, over the rows 1 and 2, whose loss has the weight
// of its target.
struct OneStage {
  testing::Scale scale{3};
  Stages stages = testing::stages_of({torch::nn::AnyModule(scale)});
  Schedule schedule = fill_drain(1, 1);
  TrainStep step{stages, schedule, TrainOptions()};
  LossFunction loss = [](Value output, Value target) {
    return WeightedLoss{
        output.tensors()[0].sum(), target.tensors()[0].sum(), {}};
  };

  explicit OneStage(double weight) {
    const auto on_device = [](std::vector<double> rows) {
      return Value::wrap(
          torch::tensor(rows, torch::kFloat).to(testing::device()));
    };
    step.give_input(on_device({1, 2}));
    step.give_target(on_device({0, weight}), loss);
    step.start();
    testing::perform(schedule, step.pass());
    step.result();
  }
};

TEST(StepPeers, WithoutOtherRanksPreparesAndKnowsNoOtherRows) {
  OneStage model(4);
  int prepared = 0;
  Alone alone;
  EXPECT_FALSE(alone
                   .begin({Batch(), Batch(), &model.loss, model.schedule,
                           Checkpoint::kNever, TrainOptions(), nullptr},
                          [&]() -> TrainStep& {
                            ++prepared;
                            return model.step;
                          })
                   .has_value());
  EXPECT_EQ(prepared, 1);
  EXPECT_EQ(alone.remote(), nullptr);
  EXPECT_EQ(alone.before(7), 0);
}

TEST(StepPeers, WithoutOtherRanksEndWithTheTotalsOfTheStep) {
  OneStage model(4);
  StepResult result;
  const LossTotals totals = Alone().end(model.step, result);
  EXPECT_EQ(totals.sum.item<float>(), 9);
  EXPECT_EQ(totals.weight, 4);
  EXPECT_TRUE(result.losses.empty());
}

TEST(StepPeers, WithoutOtherRanksEndChecksTheTotals) {
  OneStage model(0);
  StepResult result;
  EXPECT_THAT(error_of([&] { Alone().end(model.step, result); }),
              ::testing::StartsWith(
                  "c10::ValueError: the total of WeightedLoss::weight over all "
                  "micro-batches and replicas is 0,"));
}

}  // namespace
}  // namespace gpipe::internal
