#include "training/learning_rate.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "models/testing/files.h"

namespace gpipe {
namespace {

using testing::value_error_of;

std::vector<double> factors(const std::string& spec,
                            const std::vector<int64_t>& steps) {
  const LearningRateSchedule schedule(spec);
  std::vector<double> result;
  for (const int64_t step : steps) result.push_back(schedule.factor(step));
  return result;
}

using Factors = std::vector<double>;

TEST(LearningRateTest, WarmsUpToTheBaseRate) {
  EXPECT_EQ(factors("warmup:4", {0, 1, 2, 3, 4, 1000}),
            (Factors{0.25, 0.5, 0.75, 1, 1, 1}));
  EXPECT_EQ(factors("constant", {0, 9}), (Factors{1, 1}));
  EXPECT_EQ(factors("warmup:2,linear:2", {0, 1, 2, 3, 4, 5}),
            (Factors{0.5, 1, 1, 0.5, 0, 0}));
}

TEST(LearningRateTest, FallsAsItsFormula) {
  const Factors cosine = factors("cosine:4,floor:0.2", {0, 1, 2, 4, 9});
  EXPECT_EQ(cosine[0], 1);
  EXPECT_DOUBLE_EQ(cosine[1], 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(cosine[2], 0.6);
  EXPECT_EQ(cosine[3], 0.2);
  EXPECT_EQ(cosine[4], 0.2);
  EXPECT_EQ(factors("linear:4,floor:0.5", {0, 1, 2, 4, 5}),
            (Factors{1, 0.875, 0.75, 0.5, 0.5}));
  EXPECT_EQ(factors("polynomial:4:2", {0, 1, 2, 4, 5}),
            (Factors{1, 0.5625, 0.25, 0, 0}));
  EXPECT_EQ(factors("floor:0.2,step:3:0.5", {0, 2, 3, 5, 6, 8, 9, 999}),
            (Factors{1, 1, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2}));
}

// Python's LinearLR and MultiStepLR have these factors.
TEST(LearningRateTest, WarmsUpFromAFactorAndFallsAtMilestones) {
  EXPECT_EQ(factors("warmup:4:0.5", {0, 1, 2, 3, 4, 1000}),
            (Factors{0.5, 0.625, 0.75, 0.875, 1, 1}));
  EXPECT_EQ(factors("warmup:2:3,constant", {0, 1, 2}), (Factors{3, 2, 1}));
  EXPECT_EQ(factors("milestones:3:5:0.5", {0, 2, 3, 4, 5, 1000}),
            (Factors{1, 1, 0.5, 0.5, 0.25, 0.25}));
  // Milestones count from the first step. Two may be the same.
  EXPECT_EQ(factors("warmup:4:0,milestones:6:2:6:0.5", {2, 3, 4, 6}),
            (Factors{0.5, 0.75, 0.5, 0.125}));
  EXPECT_EQ(factors("milestones:1:2:0.1,floor:0.05", {0, 1, 2}),
            (Factors{1, 0.1, 0.05}));
}

// Goyal et al. 2017 (arXiv 1706.02677), with 8,192 images per step: from 0.1 to
// 3.2 in 5 epochs, a tenth after 30, 60 and 80. An epoch has 156 steps here.
TEST(LearningRateTest, IsThatOfImageNetInOneHour) {
  const LearningRateSchedule schedule(
      "warmup:780:0.03125,milestones:4680:9360:12480:0.1");
  const auto rate = [&](int64_t epoch) {
    return 3.2 * schedule.factor(epoch * 156);
  };
  EXPECT_DOUBLE_EQ(rate(0), 0.1);
  EXPECT_DOUBLE_EQ(rate(1), 0.72);
  EXPECT_DOUBLE_EQ(rate(5), 3.2);
  EXPECT_DOUBLE_EQ(rate(29), 3.2);
  EXPECT_DOUBLE_EQ(rate(30), 0.32);
  EXPECT_DOUBLE_EQ(rate(89), 0.0032);
}

TEST(LearningRateTest, SaysWhatIsWrongWithASpec) {
  // Expects the beginning of each error, and returns the rest.
  const auto error = [](const std::string& spec) {
    const std::string text =
        value_error_of([&] { LearningRateSchedule{spec}; });
    const std::string begin = "learning rate '" + spec + "': ";
    EXPECT_TRUE(text.starts_with(begin)) << text;
    return text.substr(std::min(begin.size(), text.size()));
  };
  const std::string none =
      " is none of warmup, constant, cosine, linear, polynomial, step, "
      "milestones, floor";
  EXPECT_EQ(error("warmup:5,cosin:10"), "'cosin:10'" + none);
  EXPECT_EQ(error(""), "''" + none);
  EXPECT_EQ(error("cosine"), "'cosine' should be cosine:STEPS");
  EXPECT_EQ(error("cosine:1e3"),
            "'cosine:1e3' has '1e3' instead of a whole number");
  EXPECT_EQ(error("warmup:5:x"), "'warmup:5:x' has 'x' instead of a number");
  EXPECT_EQ(error("cosine:0"),
            "'cosine:0' needs a number of steps greater than 0");
  EXPECT_EQ(error("cosine:5,warmup:5"), "'warmup:5' must be the first item");
  EXPECT_EQ(error("cosine:5,linear:5"),
            "'linear:5' is a second schedule after the warm-up; give one");
  EXPECT_EQ(error("cosine:5,floor:1.5"),
            "'floor:1.5' 1.5 is not between 0 and 1");
  EXPECT_EQ(error("floor:nan,cosine:5"),
            "'floor:nan' nan is not between 0 and 1");
  EXPECT_EQ(error("warmup:5,floor:0.1"),
            "a floor needs cosine, linear, polynomial, step or milestones");
  EXPECT_EQ(error("warmup:5:-1"), "'warmup:5:-1' -1 is not between 0 and 1000");
  EXPECT_EQ(error("milestones:0.1"),
            "'milestones:0.1' should be milestones:STEP:...:FACTOR");
  EXPECT_EQ(value_error_of([] { LearningRateSchedule().factor(-1); }),
            "step -1 is negative and has no learning rate");
}

TEST(LearningRateTest, IsRelativeToEachGroupsBaseRate) {
  using torch::optim::OptimizerParamGroup;
  using torch::optim::SGDOptions;
  torch::optim::SGD optimizer(
      {OptimizerParamGroup({at::zeros({1})}),
       OptimizerParamGroup({at::zeros({1})},
                           std::make_unique<SGDOptions>(0.5))},
      SGDOptions(8));
  const LearningRates rates(LearningRateSchedule("warmup:4"), optimizer);
  const auto at = [&](int64_t step) {
    rates.set(optimizer, step);
    return std::vector<double>{optimizer.param_groups()[0].options().get_lr(),
                               optimizer.param_groups()[1].options().get_lr()};
  };
  EXPECT_EQ(at(0), (std::vector<double>{2, 0.125}));
  EXPECT_EQ(at(4), (std::vector<double>{8, 0.5}));
  EXPECT_EQ(at(1), (std::vector<double>{4, 0.25}));
  optimizer.add_param_group(OptimizerParamGroup({at::zeros({1})}));
  EXPECT_EQ(value_error_of([&] { rates.set(optimizer, 2); }),
            "the optimizer has 3 parameter groups, expected 2");
}

// LibTorch's decays one step later than Python's and than ours.
TEST(LearningRateTest, StepIsOneStepBeforeLibTorchsStepLR) {
  const at::Tensor zero = at::zeros({1}).requires_grad_();
  torch::optim::SGD optimizer({zero}, 8.0);
  torch::optim::StepLR libtorch(optimizer, /*step_size=*/3, /*gamma=*/0.5);
  const LearningRateSchedule ours("step:3:0.5");
  for (int64_t step = 0; step < 13; ++step) {
    const double theirs = optimizer.param_groups()[0].options().get_lr();
    EXPECT_EQ(theirs, 8 * ours.factor(step == 0 ? 0 : step - 1)) << step;
    libtorch.step();  // after the optimizer.step() of this step
  }
}

}  // namespace
}  // namespace gpipe
