#include "benchmarks/harness/experiment/optimizer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gpipe::benchmarks {
namespace {

using ::testing::IsEmpty;

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

}  // namespace
}  // namespace gpipe::benchmarks
