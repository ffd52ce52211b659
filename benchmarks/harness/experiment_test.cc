#include "benchmarks/harness/experiment.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

TEST(ModeTest, AutoMeasuresSpeedsAnywhere) {
  EXPECT_EQ(parse_mode("auto", TableKind::kSpeed, true), Mode::kMeasure);
  EXPECT_EQ(parse_mode("auto", TableKind::kSpeed, false), Mode::kMeasure);
}

TEST(ModeTest, AutoMeasuresMemoryWhereTheDevicesSuffice) {
  EXPECT_EQ(parse_mode("auto", TableKind::kMemory, true), Mode::kMeasure);
  EXPECT_EQ(parse_mode("auto", TableKind::kMemory, false), Mode::kDryRun);
}

TEST(ModeTest, AutoMeasuresATimelineWhereTheDevicesSuffice) {
  EXPECT_EQ(parse_mode("auto", TableKind::kTimeline, true), Mode::kMeasure);
  EXPECT_EQ(parse_mode("auto", TableKind::kTimeline, false), Mode::kSimulate);
  EXPECT_THROW(parse_mode("dry_run", TableKind::kTimeline, true),
               std::invalid_argument);
}

TEST(ModeTest, ANamedModeIsTaken) {
  EXPECT_EQ(parse_mode("measure", TableKind::kMemory, false), Mode::kMeasure);
  EXPECT_EQ(parse_mode("simulate", TableKind::kSpeed, true), Mode::kSimulate);
  EXPECT_EQ(parse_mode("dry_run", TableKind::kSpeed, true), Mode::kDryRun);
}

TEST(ModeTest, SimulatedMemoryIsRefusedWithTheRemedy) {
  EXPECT_THAT(
      [] { parse_mode("simulate", TableKind::kMemory, false); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("use --mode=dry_run")));
}

TEST(ModeTest, AnUnknownModeIsRefused) {
  EXPECT_THROW(parse_mode("guess", TableKind::kSpeed, true),
               std::invalid_argument);
}

TEST(ModeTest, OnlyWhatIsMeasuredWithoutAcceleratorsIsSmall) {
  EXPECT_TRUE(parse_scale("auto", Mode::kMeasure, false));
  EXPECT_FALSE(parse_scale("auto", Mode::kMeasure, true));
  EXPECT_FALSE(parse_scale("auto", Mode::kSimulate, false));
  EXPECT_FALSE(parse_scale("auto", Mode::kDryRun, false));
}

TEST(ModeTest, ANamedScaleIsTaken) {
  EXPECT_FALSE(parse_scale("paper", Mode::kMeasure, false));
  EXPECT_TRUE(parse_scale("small", Mode::kSimulate, true));
  EXPECT_THROW(parse_scale("huge", Mode::kMeasure, true),
               std::invalid_argument);
}

TEST(ModeTest, NumbersAreLabelled) {
  EXPECT_EQ(to_string(Mode::kMeasure), "measured");
  EXPECT_EQ(to_string(Mode::kSimulate), "simulated");
  EXPECT_EQ(to_string(Mode::kDryRun), "dry-run");
}

std::vector<Experiment> make_experiments() {
  std::vector<Experiment> experiments(3);
  experiments[0].name = "baseline";
  experiments[1].name = "pipeline-1";
  experiments[2].name = "pipeline-2";
  return experiments;
}

std::vector<std::string> select(const std::string& names) {
  std::vector<std::string> selected;
  for (const auto& experiment : select_experiments(make_experiments(), names)) {
    selected.push_back(experiment.name);
  }
  return selected;
}

TEST(SelectExperimentsTest, KeepsTheOrderOfTheTable) {
  EXPECT_THAT(select("all"),
              ElementsAre("baseline", "pipeline-1", "pipeline-2"));
  EXPECT_THAT(select("pipeline-2,baseline"),
              ElementsAre("baseline", "pipeline-2"));
  EXPECT_THAT(select(" pipeline-2 "), ElementsAre("pipeline-2"));
}

TEST(SelectExperimentsTest, AllMayStandAmongOthers) {
  EXPECT_EQ(select("pipeline-2, all"), select("all"));
  EXPECT_THROW(select("all,none"), std::invalid_argument);
}

TEST(SelectExperimentsTest, ListsThoseThatThereAreForAnUnknownOne) {
  EXPECT_THAT([] { select("baseline,pipeline-3"); },
              ThrowsMessage<std::invalid_argument>(
                  "--experiment: there is no 'pipeline-3'; there are baseline, "
                  "pipeline-1, pipeline-2 and all"));
  EXPECT_THROW(select(""), std::invalid_argument);
}

// Returns a parameter of ones with gradients of 2.
at::Tensor make_parameter() {
  at::Tensor parameter = at::ones({3}).requires_grad_();
  parameter.mutable_grad() = at::full({3}, 2.0);
  return parameter;
}

TEST(OptimizerTest, SgdStepsByTheRateAndKeepsNothing) {
  const at::Tensor parameter = make_parameter();
  const auto optimizer = make_optimizer(Optimizer::kSgd, {parameter}, 0.25);
  optimizer->step();
  EXPECT_EQ(parameter[0].item<float>(), 0.5F);
  EXPECT_THAT(state_of(*optimizer), IsEmpty());
}

TEST(OptimizerTest, RmspropKeepsATensorPerParameter) {
  const at::Tensor parameter = make_parameter();
  const auto optimizer = make_optimizer(Optimizer::kRmsprop, {parameter}, 0.1);
  EXPECT_THAT(state_of(*optimizer), IsEmpty());
  optimizer->step();
  const auto state = state_of(*optimizer);
  ASSERT_EQ(state.size(), 1U);
  // LibTorch's default alpha is 0.99: (1 - 0.99) times the squared gradient.
  EXPECT_FLOAT_EQ(state[0][2].item<float>(), 0.04F);
}

TEST(WorkloadsTest, HaveTheShapesOfTheirText) {
  const Workload images = images_of_classes(8, 5);
  EXPECT_THAT(images.input(2).sizes(), ElementsAre(2, 3, 8, 8));
  EXPECT_THAT(images.target(2).sizes(), ElementsAre(2));
  EXPECT_LT(images.target(1000).max().item<int64_t>(), 5);

  const Workload masks = images_with_masks(8, Mask::kOnes);
  EXPECT_THAT(masks.target(2).sizes(), ElementsAre(2, 1, 8, 8));
  EXPECT_EQ(masks.target(2).min().item<float>(), 1);
  const Workload random = images_with_masks(8, Mask::kRandom);
  EXPECT_LT(random.target(2).min().item<float>(), 1);

  const Workload text = tokens(7, 5);
  EXPECT_THAT(text.input(2).sizes(), ElementsAre(2, 7));
  EXPECT_EQ(text.target(2).scalar_type(), at::kLong);
}

TEST(WorkloadsTest, EqualLogitsHaveTheEntropyOfTheClasses) {
  const float expected = std::log(4.0F);
  EXPECT_FLOAT_EQ(
      cross_entropy(at::zeros({3, 4}), at::zeros({3}, at::kLong)).item<float>(),
      expected);
  EXPECT_FLOAT_EQ(
      cross_entropy(at::zeros({2, 3, 4}), at::zeros({2, 3}, at::kLong))
          .item<float>(),
      expected);
}

TEST(WorkloadsTest, AMaskThatIsNotForeseenCostsABitPerPixel) {
  EXPECT_FLOAT_EQ(
      mask_loss(at::zeros({2, 1, 4, 4}), at::full({2, 1, 4, 4}, 0.25))
          .item<float>(),
      std::log(2.0F));
}

TEST(WorkloadsTest, ReducedRowsDifferInThePipelineAlone) {
  const auto rows = reduced(
      {{"baseline", 0, 96, 1, {}, Checkpoint::kNever, {1.0}, {}, ""},
       {"n2m1", 2, 80, 1, {1, 2}, Checkpoint::kAlways, {1.0}, {}, ""},
       {"n2m32", 2, 1280, 32, {2, 1}, Checkpoint::kExceptLast, {}, {}, ""}},
      16, 4);
  for (const auto& row : rows) {
    EXPECT_EQ(row.batch_size, 16);
    EXPECT_THAT(row.balance, IsEmpty());
  }
  EXPECT_EQ(rows[0].chunks, 1);
  EXPECT_EQ(rows[1].chunks, 1);
  EXPECT_EQ(rows[2].chunks, 4);
  EXPECT_EQ(rows[1].checkpoint, Checkpoint::kAlways);
}

}  // namespace
}  // namespace gpipe::benchmarks
