#include "gpipe/train.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "gpipe/testing/errors.h"

namespace gpipe {
namespace {

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
