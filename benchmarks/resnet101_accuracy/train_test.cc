#include "benchmarks/resnet101_accuracy/train.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "train_program/make_task.h"
#include "train_program/testing/small_runs.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Returns a model with six layers for the eight classes of generated shapes.
torch::nn::Sequential tiny_model() {
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).stride(2)),
      torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
      torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(),
      torch::nn::Linear(8, 8));
}

// Returns a plan for two epochs of two steps on the CPU.
AccuracyPlan plan_of(std::vector<int64_t> balance) {
  AccuracyPlan plan;
  plan.experiment.name = "toy";
  plan.experiment.partitions = static_cast<int64_t>(balance.size());
  plan.experiment.batch_size = 4;
  plan.experiment.chunks = 2;
  plan.experiment.balance = std::move(balance);
  plan.options.devices = "cpu,cpu,cpu";
  plan.options.threads = 1;
  plan.options.epochs = 2;
  plan.options.limit = 9;
  plan.options.model = "amoebanetd";  // replaced by tiny_model()
  plan.options.sizes["amoebanetd"] = {.layers = 3, .width = 8};
  plan.options.size = 16;
  plan.options.batch = 4;
  plan.options.weight_decay = 1e-4;
  plan.rate.base = 0.001;
  plan.rate.warmup_from = 0.0001;
  plan.rate.warmup_epochs = 1;
  return plan;
}

AccuracyResult train(const AccuracyPlan& plan) {
  const auto shapes = train_program::make_task(plan.options);
  train_program::TaskWith task(*shapes, nullptr);
  task.change_model = [](const auto&) { return tiny_model(); };
  return train_accuracy(plan, task);
}

TEST(TrainAccuracyTest, EndsInTheSameBitsHoweverTheModelIsCut) {
  const AccuracyResult one = train(plan_of({6}));
  const AccuracyResult three = train(plan_of({1, 3, 2}));
  EXPECT_EQ(one.checksum, three.checksum);
  ASSERT_THAT(one.epochs, SizeIs(2));
  ASSERT_THAT(three.epochs, SizeIs(2));
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(one.epochs[i].train.loss, three.epochs[i].train.loss);
    EXPECT_EQ(one.epochs[i].test.loss, three.epochs[i].test.loss);
  }
  EXPECT_THAT(three.balance, ElementsAre(1, 3, 2));
}

TEST(TrainAccuracyTest, EpochsAreOfWholeMiniBatchesAndTestedOnAllImages) {
  const AccuracyResult result = train(plan_of({4, 2}));
  const EpochResult& first = result.epochs.at(0);
  EXPECT_EQ(first.train.items, 8);  // of 9 images
  EXPECT_EQ(first.test.items, 256);
  EXPECT_DOUBLE_EQ(first.rate, 0.0001);
  EXPECT_DOUBLE_EQ(result.epochs.at(1).rate, 0.001);
  EXPECT_GT(mean_loss(first.train), 0);
  EXPECT_NE(first.train.loss, result.epochs.at(1).train.loss);
}

TEST(TrainAccuracyTest, WithoutPartitionsIsTheModelInOne) {
  AccuracyPlan plan = plan_of({6});
  plan.options.epochs = 1;
  plan.experiment.chunks = 1;
  const uint64_t in_one = train(plan).checksum;
  plan.experiment.partitions = 0;
  plan.experiment.balance.clear();
  const AccuracyResult plain = train(plan);
  EXPECT_EQ(plain.checksum, in_one);
  EXPECT_THAT(plain.balance, ElementsAre(6));
}

TEST(TrainAccuracyTest, ABalanceThatIsNotGivenIsMeasured) {
  AccuracyPlan plan = plan_of({3, 3});
  plan.experiment.balance.clear();
  const AccuracyResult result = train(plan);
  ASSERT_THAT(result.balance, SizeIs(2));
  EXPECT_EQ(result.balance[0] + result.balance[1], 6);
}

TEST(TrainAccuracyTest, ALossThatIsNotFiniteEndsIt) {
  AccuracyPlan plan = plan_of({6});
  plan.rate.warmup_epochs = 0;
  plan.rate.base = 1e38;
  try {
    train(plan);
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("try a smaller --lr"));
  }
}

TEST(TrainAccuracyTest, ScoresAreMeansOverImages) {
  const Score score{/*items=*/4, /*loss=*/6, /*value=*/3};
  EXPECT_EQ(mean_loss(score), 1.5);
  EXPECT_EQ(error_percent(score), 25);
}

}  // namespace
}  // namespace gpipe::benchmarks
