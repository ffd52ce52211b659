// Tests errors and refusals of training steps, and the placement of stages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/mean_square.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::devices;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::mean_square;
using torch::Tensor;
namespace nn = torch::nn;

GPipeOptions options_of_two(Checkpoint mode = Checkpoint::kNever) {
  return testing::options({3, 3}, 1, mode).threads_per_partition(1);
}

class TrainStepErrors : public ::testing::Test {
 protected:
  TrainStepErrors() { torch::set_num_threads(1); }
};

class OwnError : public std::exception {
 public:
  const char* what() const noexcept override { return "my own"; }
};

TEST_F(TrainStepErrors, AnErrorOfTheLossComesOutAndChangesNothing) {
  GPipe pipeline(testing::linear_model(), options_of_two());
  const Tensor input = torch::ones({6, 6}, torch::kDouble).to(device());
  const Tensor target = torch::arange(6, torch::kDouble);
  const auto step = [&](bool fails) {
    return pipeline->train_step(
        input, target,
        [&](const Tensor& output, const Tensor& numbers) {
          if (fails && numbers[0].item<double>() == 2) throw OwnError();
          return output.mean();
        },
        one_forward_one_backward(2, 3));
  };
  EXPECT_THROW(step(true), OwnError);
  const auto failure = pipeline->last_failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->partition, 1);
  EXPECT_EQ(failure->microbatch, 1);
  EXPECT_EQ(failure->layer, "loss");
  EXPECT_EQ(failure->phase, Phase::kForward);
  for (const Tensor& each : pipeline->parameters()) {
    EXPECT_FALSE(each.grad().defined());
  }
  step(false);
  EXPECT_FALSE(pipeline->last_failure().has_value());
  EXPECT_TRUE(pipeline->parameters()[0].grad().defined());
}

// Without the check, the recompute would find the target changed and change it
// again.
TEST_F(TrainStepErrors,
       ALossThatChangesItsTargetIsDetectedWhereItIsCheckpointed) {
  const auto smoothed = [](const Tensor& output, Tensor target) {
    return mean_square(output, target.mul_(0.9).add_(0.05));
  };
  const Tensor input = torch::linspace(-1, 1, 36, torch::kDouble).view({6, 6});
  const Tensor target = torch::linspace(0, 1, 18, torch::kDouble).view({6, 3});
  torch::manual_seed(0);
  nn::Sequential layers = testing::linear_model();
  const auto expected = torch::autograd::grad(
      {smoothed(layers->forward(input), target.clone())}, layers->parameters());
  for (const Checkpoint mode : testing::kModes) {
    GPipe pipeline(layers, options_of_two(mode));
    pipeline->zero_grad();
    const auto error = error_of([&] {
      pipeline->train_step(input.to(device()), target.clone(), smoothed,
                           one_forward_one_backward(2, 3));
    });
    const auto parameters = pipeline->parameters();
    if (mode == Checkpoint::kNever) {
      EXPECT_EQ(error, "");
      for (std::size_t k = 0; k < parameters.size(); ++k) {
        EXPECT_TRUE(torch::allclose(parameters[k].grad().cpu(), expected[k]));
      }
      continue;
    }
    EXPECT_EQ(error,
              "c10::Error: the loss function changes its target in place, so "
              "that the checkpointed forward cannot be computed again from it; "
              "let it work on target.clone() (in partition 1, micro-batch 0, "
              "forward (checkpointed), layer 'loss')");
    for (const Tensor& each : parameters) EXPECT_FALSE(each.grad().defined());
  }
}

TEST_F(TrainStepErrors, WhatDoesNotFitIsRefusedWithTheNumbers) {
  GPipe pipeline(testing::linear_model(), options_of_two());
  const Tensor input = torch::ones({6, 6}, torch::kDouble).to(device());
  const Tensor target = torch::zeros({6, 3}, torch::kDouble);
  const auto error = [&](const Tensor& x, const Tensor& y, const auto& loss,
                         const Schedule& schedule) {
    return error_of([&] { pipeline->train_step(x, y, loss, schedule); });
  };
  EXPECT_THAT(error(input, target, mean_square, one_forward_one_backward(3, 3)),
              HasSubstr("the schedule has 3 stages on 3 ranks, but the "
                        "pipeline has 2 partitions on 2 ranks"));
  EXPECT_EQ(error(input, target, mean_square, one_forward_one_backward(2, 4)),
            "");
  EXPECT_THAT(error(input, target, mean_square, one_forward_one_backward(2, 7)),
              HasSubstr("the schedule has 7 micro-batches, but the input has 6 "
                        "rows"));
  EXPECT_THAT(error(input, target.slice(0, 0, 5), mean_square,
                    one_forward_one_backward(2, 3)),
              HasSubstr("a row for each of the input's 6 in dimension 0, but "
                        "it has the sizes [5, 3]"));
  EXPECT_THAT(error(
                  input, target,
                  [](const Tensor& output, const Tensor&) { return output; },
                  one_forward_one_backward(2, 3)),
              HasSubstr("the loss of a micro-batch must be a floating-point "
                        "tensor with one element"));
  EXPECT_THAT(error(
                  input, target,
                  [](const Tensor& output, const Tensor&) {
                    return output.detach().sum();
                  },
                  one_forward_one_backward(2, 3)),
              HasSubstr("the loss of micro-batch 0 does not require grad"));
  Schedule broken = one_forward_one_backward(2, 3);
  broken.ranks[1].pop_back();
  EXPECT_THROW(pipeline->train_step(input, target, mean_square, broken),
               std::invalid_argument);
  EXPECT_THAT(error_of([] {
                GPipe(testing::linear_model(),
                      GPipeOptions({2, 2, 2}).stages_per_rank(2));
              }),
              HasSubstr("(partitions: 3, stages_per_rank: 2)"));
}

// Without the check, some schedules would free the target's graph after the
// first micro-batch.
TEST_F(TrainStepErrors, ATargetWithAGraphIsRefusedByEverySchedule) {
  nn::Linear teacher(nn::LinearOptions(6, 3).bias(false));
  teacher->to(device(), torch::kDouble);
  const Tensor input = torch::ones({8, 6}, torch::kDouble).to(device());
  for (const std::string& name : schedule_names()) {
    const int per_rank = fixed_stages_per_rank(name).value_or(1);
    if (name == "forward-only" || per_rank > 1) continue;
    const Schedule schedule = named_schedule(name, 2, 4, per_rank);
    GPipe pipeline(testing::linear_model(), options_of_two());
    const auto step = [&](const auto& all, const auto& of_all) {
      return pipeline->train_step(all, of_all, mean_square, schedule);
    };
    const Tensor target = teacher->forward(input);
    Microbatches<Tensor> data, targets;
    for (const Tensor& each : input.chunk(4)) {
      data.parts.push_back(each);
      targets.parts.push_back(torch::zeros({2, 3}, each.options()));
    }
    targets.parts.back() = teacher->forward(data.parts.back());
    const std::string text =
        "ValueError: the target requires grad, but train_step() computes no "
        "gradients of targets; pass target.detach()";
    EXPECT_THAT(error_of([&] { step(input, target); }), HasSubstr(text))
        << name;
    EXPECT_THAT(error_of([&] { step(data, targets); }), HasSubstr(text))
        << name;
    for (const Tensor& each : pipeline->parameters()) {
      EXPECT_FALSE(each.grad().defined());
    }
    step(input, target.detach());
    EXPECT_TRUE(pipeline->parameters()[0].grad().defined());
    EXPECT_FALSE(teacher->weight.grad().defined());
    const Tensor loss = pipeline->evaluate(input, target, mean_square).loss;
    EXPECT_FALSE(loss.requires_grad());
  }
}

TEST_F(TrainStepErrors, AStageIsOnTheDeviceOfItsRank) {
  if (device(0) == device(1)) GTEST_SKIP() << "needs two devices";
  const auto options =
      GPipeOptions({2, 2, 1, 1}).stages_per_rank(2).devices(devices(2));
  GPipe loop(testing::linear_model(), options);
  EXPECT_THAT(loop->devices(),
              ElementsAre(device(0), device(1), device(0), device(1)));
  GPipe back(testing::linear_model(),
             GPipeOptions(options).placement(Placement::kV));
  EXPECT_THAT(back->devices(),
              ElementsAre(device(0), device(1), device(1), device(0)));
  EXPECT_THAT(error_of([&] {
                loop->train_step(
                    torch::ones({4, 6}, torch::kDouble).to(device()),
                    torch::zeros({4, 3}, torch::kDouble), mean_square,
                    zero_bubble_v(2, 4));
              }),
              HasSubstr("GPipeOptions::placement"));
}

TEST_F(TrainStepErrors, ForwardAndBackwardWorkWithSeveralStagesPerRank) {
  for (const Placement placement : {Placement::kLoop, Placement::kV}) {
    torch::manual_seed(0);
    nn::Sequential layers = testing::linear_model();
    const Tensor input = torch::randn({6, 6}, torch::kDouble);
    const auto expected = testing::plain_step(layers, input, 3);
    GPipe pipeline(layers, GPipeOptions({2, 2, 1, 1})
                               .stages_per_rank(2)
                               .placement(placement)
                               .chunks(3)
                               .threads_per_partition(1)
                               .devices(devices(2)));
    const auto found = testing::training_step(
        *pipeline, [&](Tensor x) { return pipeline->forward(x); }, input);
    EXPECT_EQ(testing::difference(found, expected), "");
  }
}

}  // namespace
}  // namespace gpipe
