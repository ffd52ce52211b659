#include "training/shardable.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <vector>

namespace gpipe {
namespace {

namespace optim = torch::optim;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::vector<torch::Tensor> some_parameters() {
  return {torch::ones({2}).requires_grad_()};
}

TEST(ShardableTest, RefusesLbfgsWithTheReason) {
  const optim::LBFGS lbfgs(some_parameters(), optim::LBFGSOptions(1));
  EXPECT_THAT([&] { check_shardable(lbfgs); },
              ThrowsMessage<c10::TypeError>(AllOf(
                  HasSubstr("torch::optim::LBFGS"),
                  HasSubstr("gradients of all parameters as one vector"),
                  HasSubstr("use SGD, Adam, AdamW, RMSprop or Adagrad"))));
}

class OwnLbfgs : public optim::LBFGS {
 public:
  using optim::LBFGS::LBFGS;
};

TEST(ShardableTest, RefusesClassesDerivedFromLbfgs) {
  const OwnLbfgs derived(some_parameters(), optim::LBFGSOptions(1));
  EXPECT_THAT(
      [&] { check_shardable(derived); },
      ThrowsMessage<c10::TypeError>(HasSubstr("OwnLbfgs cannot be spread")));
}

TEST(ShardableTest, AcceptsElementwiseOptimizers) {
  const std::vector<torch::Tensor> parameters = some_parameters();
  EXPECT_NO_THROW(check_shardable(
      optim::SGD(parameters, optim::SGDOptions(1).momentum(0.9))));
  EXPECT_NO_THROW(check_shardable(optim::Adam(parameters)));
  EXPECT_NO_THROW(check_shardable(optim::AdamW(parameters)));
  EXPECT_NO_THROW(check_shardable(optim::RMSprop(parameters)));
  EXPECT_NO_THROW(check_shardable(optim::Adagrad(parameters)));
}

}  // namespace
}  // namespace gpipe
