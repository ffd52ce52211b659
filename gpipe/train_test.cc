#include "gpipe/train.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/eval_scope.h"
#include "gpipe/failure.h"
#include "gpipe/testing/errors.h"

namespace gpipe {
namespace {

namespace nn = torch::nn;

std::shared_ptr<nn::Module> holder_of(
    std::initializer_list<std::shared_ptr<nn::Module>> modules) {
  auto holder = std::make_shared<nn::Module>();
  for (const auto& each : modules) {
    holder->register_module(std::to_string(holder->children().size()), each);
  }
  return holder;
}

std::vector<bool> modes_of(const nn::Module& module) {
  std::vector<bool> modes;
  for (const auto& each : module.modules()) {
    modes.push_back(each->is_training());
  }
  return modes;
}

TEST(EvalScope, GivesEachModuleItsOwnModeBack) {
  const auto frozen = holder_of({}), trained = holder_of({});
  const auto shared = holder_of({});  // occurs twice in the model
  const auto inner = holder_of({shared, trained});
  const auto model = holder_of({frozen, inner, holder_of({shared})});
  for (const auto& each : {frozen, shared, inner}) each->eval();
  trained->train();  // inside a module in evaluation mode
  const std::vector<bool> modes{true, false, false, false, true, true, false};
  ASSERT_EQ(modes_of(*model), modes);
  {
    const EvalScope scope(*model);
    EXPECT_EQ(modes_of(*model), std::vector<bool>(7, false));
  }
  EXPECT_EQ(modes_of(*model), modes);

  model->eval();
  { const EvalScope scope(*model); }
  EXPECT_EQ(modes_of(*model), std::vector<bool>(7, false));
}

TEST(EvalScope, RestoresAllModesIfALayerRefusesIts) {
  struct Refuses : nn::Module {
    void train(bool on) override {
      if (is_refusing) throw std::runtime_error("this layer stays as it is");
      nn::Module::train(on);
    }
    bool is_refusing = false;
  };
  const auto first = holder_of({});
  const auto last = std::make_shared<Refuses>();
  const auto model = holder_of({first, last});
  last->is_refusing = true;
  EXPECT_THROW(const EvalScope scope(*model), std::runtime_error);
  EXPECT_TRUE(first->is_training());
  last->is_refusing = false;
  {
    const EvalScope scope(*model);
    last->is_refusing = true;
  }
  EXPECT_TRUE(first->is_training());
}

const Failure kInLayer{1, 3, Phase::kRecomputing, "5", ""};

TEST(Failure, PlaceNamesPartitionMicrobatchPhaseAndLayer) {
  EXPECT_EQ(kInLayer.place(),
            "partition 1, micro-batch 3, recompute, layer '5'");
  EXPECT_EQ(Failure().place(), "partition 0, micro-batch 0, forward");
}

TEST(Failure, TextHasWhatTheExceptionSays) {
  Failure failure = kInLayer;
  EXPECT_EQ(failure.to_string(), failure.place());
  failure.what = "no memory";
  EXPECT_EQ(failure.to_string(), failure.place() + ": no memory");
}

using testing::error_of;

StepResult with_outputs(const std::vector<at::Tensor>& outputs, bool split) {
  StepResult result;
  result.outputs.emplace();
  for (const at::Tensor& each : outputs) result.outputs->emplace_back(each);
  result.split = split;
  return result;
}

TEST(StepResult, FindsAMetricByItsNameAndListsTheOthers) {
  StepResult result;
  EXPECT_EQ(error_of([&] { result.metric("right"); }),
            "c10::ValueError: the loss function has returned no metric 'right' "
            "(its metrics: none)");
  result.metrics = {{"right", at::full({}, 3)}, {"late", at::full({}, 5)}};
  EXPECT_EQ(result.metric("late").item<int64_t>(), 5);
  EXPECT_EQ(result.metric("right").item<int64_t>(), 3);
  EXPECT_EQ(error_of([&] { result.metric("left"); }),
            "c10::ValueError: the loss function has returned no metric 'left' "
            "(its metrics: 'right' 'late')");
}

TEST(StepResult, GivesOutputsOfTheTypeOfTheLastLayerOnly) {
  const at::Tensor output = at::full({2}, 7);
  const StepResult result = with_outputs({output}, false);
  EXPECT_TRUE(result.output().is_same(output));
  EXPECT_TRUE(result.output().is_same(output));  // they stay
  EXPECT_EQ(error_of([&] {
              result.output<std::vector<at::Tensor>>();
            }).rfind("c10::TypeError: ", 0),
            0u);
}

TEST(StepResult, GivesOutputsAsPartsIfTheInputWasInParts) {
  const at::Tensor first = at::full({2}, 7), second = at::full({3}, 8);
  const StepResult result = with_outputs({first, second}, true);
  const auto parts = result.output_parts().parts;
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(parts[0].is_same(first));
  EXPECT_TRUE(parts[1].is_same(second));
  EXPECT_EQ(error_of([&] { result.output(); }),
            "c10::Error: the input was given as Microbatches; call "
            "output_parts()");
}

TEST(StepResult, SaysWhyThereAreNoOutputs) {
  EXPECT_EQ(error_of([] { StepResult().output(); }),
            "c10::Error: the outputs of a training step are kept with "
            "TrainOptions().outputs(true) only");
  EXPECT_EQ(
      error_of([] { with_outputs({at::ones({1})}, false).output_parts(); }),
      "c10::Error: the input was given as one value; call output()");
}

}  // namespace
}  // namespace gpipe
