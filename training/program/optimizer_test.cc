#include "training/program/optimizer.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "models/testing/files.h"

namespace gpipe::train_program {
namespace {

namespace nn = torch::nn;

nn::Sequential model() {
  return nn::Sequential(nn::Linear(2, 3), nn::BatchNorm1d(3));
}

TEST(OptimizerTest, BiasesAndNormsHaveNoWeightDecay) {
  const auto of = model();
  Options options;
  options.weight_decay = 0.1;
  const auto optimizer = make_optimizer(options, of->parameters());
  const auto& groups = optimizer->param_groups();
  ASSERT_EQ(groups.size(), 2);
  // A bias, and the weight and bias of the normalization.
  ASSERT_EQ(groups[0].params().size(), 3);
  for (const at::Tensor& parameter : groups[0].params()) {
    EXPECT_EQ(parameter.dim(), 1);
  }
  ASSERT_EQ(groups[1].params().size(), 1);
  using Options = torch::optim::AdamWOptions;
  EXPECT_EQ(static_cast<const Options&>(groups[0].options()).weight_decay(), 0);
  EXPECT_EQ(static_cast<const Options&>(groups[1].options()).weight_decay(),
            0.1);
}

TEST(OptimizerTest, UnlessTheyAreToHaveIt) {
  const auto of = model();
  Options options;
  options.optimizer = "sgd";
  options.weight_decay = 0.1;
  options.decay_norms = true;
  const auto optimizer = make_optimizer(options, of->parameters());
  ASSERT_EQ(optimizer->param_groups().size(), 1);
  EXPECT_EQ(optimizer->param_groups()[0].params().size(), 4);
}

TEST(OptimizerTest, ThereAreFive) {
  const auto of = model();
  Options options;
  for (const char* name : {"sgd", "adam", "adamw", "rmsprop", "adagrad"}) {
    options.optimizer = name;
    EXPECT_NE(make_optimizer(options, of->parameters()), nullptr) << name;
  }
  options.optimizer = "lion";
  EXPECT_NE(gpipe::testing::value_error_of([&] {
              make_optimizer(options, of->parameters());
            }).find("must be sgd, adam, adamw, rmsprop or adagrad"),
            std::string::npos);
}

// Nesterov's momentum m with equal gradients g changes a parameter by
// lr (g + m b), where b is g at first and g + m b after it.
TEST(OptimizerTest, NesterovLooksAheadAlongTheMomentum) {
  Options options;
  options.optimizer = "sgd";
  options.momentum = 0.5;
  options.weight_decay = 0;
  options.lr = 0.25;
  options.nesterov = true;
  const at::Tensor one = at::ones({1}).requires_grad_();
  const auto optimizer = make_optimizer(options, {one});
  one.mutable_grad() = at::ones({1});
  optimizer->step();
  EXPECT_EQ(one.item<float>(), 1 - 0.25f * 1.5f);
  optimizer->step();
  EXPECT_EQ(one.item<float>(), 1 - 0.25f * (1.5f + 1.75f));
}

TEST(OptimizerTest, NesterovNeedsSgdWithMomentum) {
  Options options;
  options.nesterov = true;
  EXPECT_EQ(
      gpipe::testing::value_error_of([&] { make_optimizer(options, {}); }),
      "--nesterov needs --optimizer=sgd and --momentum above 0, not "
      "--optimizer=adamw and --momentum=0.9");
}

TEST(OptimizerTest, AModuleWithoutParametersHasAGroup) {
  const nn::Sequential empty;
  EXPECT_EQ(make_optimizer({}, empty->parameters())->param_groups().size(), 1);
}

}  // namespace
}  // namespace gpipe::train_program
