// Tests training steps with all schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"

namespace gpipe {
namespace {

using testing::cut;
using testing::device;
using testing::devices;
using testing::difference;
using ::testing::ElementsAre;
using testing::error_of;
using testing::grads_of;
using ::testing::HasSubstr;
using testing::layer;
using testing::mean_square;
using testing::reference_device;
using ::testing::SizeIs;
using testing::Subject;
using testing::with_rows;
using torch::Tensor;
namespace nn = torch::nn;

// A schedule and the size of its pipeline.
struct Setting {
  std::string name;
  int ranks = 1, microbatches = 1, stages_per_rank = 1;

  int stages() const { return ranks * stages_per_rank; }
  Schedule schedule() const {
    return named_schedule(name, ranks, microbatches, stages_per_rank);
  }
  std::string describe() const {
    return name + ", " + std::to_string(ranks) + " ranks of " +
           std::to_string(stages_per_rank) + " stages, " +
           std::to_string(microbatches) + " micro-batches";
  }
};

// Returns every schedule that has backwards, in several sizes.
std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::string& name : training_schedule_names()) {
    for (const int ranks : {1, 2, 3}) {
      for (const int stages_per_rank : {1, 2}) {
        const auto fixed = fixed_stages_per_rank(name);
        if (fixed && *fixed != stages_per_rank) continue;
        for (const int microbatches : {1, 3, 6}) {
          if (testing::schedule_of(name, ranks, microbatches,
                                   stages_per_rank)) {
            all.push_back({name, ranks, microbatches, stages_per_rank});
          }
        }
      }
    }
  }
  return all;
}

GPipeOptions options_for(const Setting& setting, int64_t layers,
                         Checkpoint mode = Checkpoint::kNever) {
  return testing::options_for(setting.schedule(), layers, mode);
}

// Returns the order in which a stage's gradients are complete.
std::vector<int> order_of_backwards(const Schedule& schedule, int stage) {
  std::vector<int> order;
  for (const auto& rank : schedule.ranks) {
    for (const Action& action : rank) {
      if (action.stage == stage &&
          (action.kind == ActionKind::kBackward ||
           action.kind == ActionKind::kBackwardWeight)) {
        order.push_back(action.microbatch);
      }
    }
  }
  return order;
}

// A model with frozen and unused parameters among others.
nn::Sequential mixed_model() {
  struct UnusedImpl : nn::Module {
    UnusedImpl() { register_parameter("unused", torch::ones({3})); }
    Tensor forward(Tensor x) { return x.sin(); }
  };
  nn::Sequential model(nn::Linear(4, 6), nn::ReLU(), nn::Linear(6, 6),
                       std::make_shared<UnusedImpl>(), nn::Linear(6, 6),
                       nn::LayerNorm(nn::LayerNormOptions({6})),
                       nn::Linear(6, 2));
  model->to(torch::kDouble);
  for (auto& parameter : model[2]->parameters()) {
    parameter.requires_grad_(false);
  }
  return model;
}

// A model whose first layers are frozen, as in fine-tuning.
nn::Sequential fine_tuned_model() {
  nn::Sequential model = testing::linear_model();
  for (auto& parameter : model[0]->parameters())
    parameter.requires_grad_(false);
  for (auto& parameter : model[2]->parameters())
    parameter.requires_grad_(false);
  return model;
}

std::map<std::string, Subject> models() {
  std::map<std::string, Subject> all = testing::subjects();
  all["conv"].make = [] { return testing::conv_model(); };
  all["mixed"] = {mixed_model, {4}, {2}};
  all["fine-tuned"] = {fine_tuned_model, {6}, {3}};
  return all;
}

torch::optim::SGD optimizer_of(nn::Module& module) {
  return torch::optim::SGD(module.parameters(),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

// Returns copies of gradients, parameters and buffers on the CPU.
std::vector<Tensor> state_of(const nn::Module& module) {
  std::vector<Tensor> state = grads_of(module);
  for (const Tensor& each : module.parameters()) {
    state.push_back(each.detach().cpu().clone());
  }
  for (const Tensor& each : module.buffers()) {
    state.push_back(each.cpu().clone());
  }
  return state;
}

class TrainStep : public ::testing::Test {
 protected:
  TrainStep() { torch::set_num_threads(1); }
};

TEST_F(TrainStep, EqualsPlainAccumulationInTheOrderOfTheBackwards) {
  constexpr int kRows = 6;
  for (const auto& [name, model] : models()) {
    for (const Setting& setting : settings()) {
      const Schedule schedule = setting.schedule();
      const auto order = order_of_backwards(schedule, 0);
      torch::manual_seed(0);
      nn::Sequential plain = model.make();
      nn::Sequential layers = model.make();
      {
        const torch::NoGradGuard no_grad;
        for (std::size_t k = 0; k < plain->parameters().size(); ++k) {
          layers->parameters()[k].copy_(plain->parameters()[k]);
        }
      }
      plain->to(reference_device());
      GPipe pipeline(layers, options_for(setting, layers->size()));
      auto plain_optimizer = optimizer_of(*plain);
      auto optimizer = optimizer_of(*pipeline);
      const bool many =
          setting.ranks == 3 && setting.microbatches == 6 && device().is_cpu();
      const int steps = many ? 20 : 2;
      for (int step = 0; step < steps; ++step) {
        const Tensor input =
            torch::randn(with_rows(kRows, model.input), torch::kDouble);
        const Tensor target =
            torch::randn(with_rows(kRows, model.target), torch::kDouble);
        plain_optimizer.zero_grad();
        const auto inputs =
            input.to(reference_device()).chunk(setting.microbatches);
        const auto targets =
            target.to(reference_device()).chunk(setting.microbatches);
        std::vector<Tensor> losses;
        for (int i = 0; i < setting.microbatches; ++i) {
          losses.push_back(mean_square(plain->forward(inputs[i]), targets[i]));
        }
        for (const int i : order) {
          (losses[i] * (1.0 / setting.microbatches)).backward();
        }
        plain_optimizer.step();

        optimizer.zero_grad();
        const StepResult result = pipeline->train_step(
            input.to(device()), target, mean_square, schedule);
        optimizer.step();
        for (int i = 0; i < setting.microbatches; ++i) {
          EXPECT_TRUE(result.losses[i].cpu().equal(losses[i].detach().cpu()));
        }
      }
      for (int s = 0; s < setting.stages(); ++s) {
        ASSERT_EQ(order_of_backwards(schedule, s), order) << setting.describe();
      }
      EXPECT_EQ(difference(state_of(*pipeline), state_of(*plain)), "")
          << name << ", " << setting.describe();
    }
  }
}

// Returns the state after some steps of a model with dropout, BatchNorm and
// uneven rows.
std::vector<Tensor> state_after(const Setting& setting, Checkpoint mode,
                                bool fixed_order,
                                const std::function<nn::Sequential()>& make,
                                const std::vector<int64_t>& input_sizes,
                                const std::vector<int64_t>& target_sizes,
                                bool deferred = false) {
  torch::manual_seed(1);
  nn::Sequential layers = make();
  GPipe pipeline(
      layers,
      options_for(setting, layers->size(), mode).deferred_batch_norm(deferred));
  auto optimizer = optimizer_of(*pipeline);
  for (int step = 0; step < 3; ++step) {
    const Tensor input =
        torch::randn(with_rows(11, input_sizes), torch::kDouble);
    const Tensor target =
        torch::randn(with_rows(11, target_sizes), torch::kDouble);
    optimizer.zero_grad();
    pipeline->train_step(input.to(device()), target, mean_square,
                         setting.schedule(),
                         TrainOptions().fixed_sum_order(fixed_order));
    optimizer.step();
  }
  return state_of(*pipeline);
}

// On accelerators each setting runs one mode, in turn, unless GPIPE_THOROUGH=1
// is set.
TEST_F(TrainStep, WithAFixedOrderOfSumsAllSchedulesGiveTheSameBits) {
  const auto dropout = [] { return testing::conv_model(0.3); };
  const bool all_modes = device().is_cpu() || testing::is_thorough();
  int turn = 0;
  for (const bool deferred : {false, true}) {
    const auto expected =
        state_after({"fill-drain", 1, 6, 1}, Checkpoint::kNever, true, dropout,
                    {3, 8, 8}, {5}, deferred);
    for (const Setting& setting : settings()) {
      if (setting.microbatches != 6) continue;
      ++turn;
      for (const Checkpoint mode : testing::kModes) {
        if (!all_modes && static_cast<int>(mode) != turn % 3) continue;
        EXPECT_EQ(difference(state_after(setting, mode, true, dropout,
                                         {3, 8, 8}, {5}, deferred),
                             expected),
                  "")
            << setting.describe() << ", " << to_string(mode);
      }
    }
  }
  const auto skips = state_after({"fill-drain", 1, 6, 1}, Checkpoint::kNever,
                                 true, testing::skip_model, {4}, {4});
  for (const Setting& setting : settings()) {
    if (setting.microbatches != 6) continue;
    EXPECT_EQ(difference(state_after(setting, Checkpoint::kAlways, true,
                                     testing::skip_model, {4}, {4}),
                         skips),
              "")
        << setting.describe();
  }
}

TEST_F(TrainStep, TheOrderOfSumsShowsInTheBits) {
  // Checks that the test above can fail: without a fixed order the bits differ.
  const auto of = [](const char* name, bool fixed) {
    return state_after({name, 2, 6, 1}, Checkpoint::kNever, fixed,
                       testing::linear_model, {6}, {3});
  };
  EXPECT_NE(difference(of("fill-drain", false), of("1f1b", false)), "");
  EXPECT_EQ(difference(of("fill-drain", true), of("1f1b", true)), "");
}

TEST_F(TrainStep, UnevenMicrobatchesCountByTheirRows) {
  torch::manual_seed(0);
  nn::Sequential layers = testing::linear_model();
  const Tensor input = torch::randn({5, 6}, torch::kDouble);
  const Tensor target = torch::randn({5, 3}, torch::kDouble);
  const Tensor whole = mean_square(layers->forward(input), target);
  const auto expected = torch::autograd::grad({whole}, layers->parameters());
  GPipe pipeline(layers, options_for({"1f1b", 2, 3, 1}, layers->size()));
  const StepResult result = pipeline->train_step(
      input.to(device()), target, mean_square, one_forward_one_backward(2, 3));
  EXPECT_THAT(result.losses, SizeIs(3));
  EXPECT_NEAR(result.loss.item<double>(), whole.item<double>(), 1e-14);
  EXPECT_EQ(difference(grads_of(*pipeline), expected, 1e-12, 1e-14), "");
}

TEST_F(TrainStep, AddsToTheGradientsThatAreThereAndToThoseOfTheInput) {
  torch::manual_seed(0);
  GPipe pipeline(testing::linear_model(), options_for({"1f1b", 2, 2, 1}, 6));
  const Tensor target = torch::zeros({4, 3}, torch::kDouble);
  const auto step = [&] {
    Tensor input = torch::ones({4, 6}, torch::kDouble).to(device());
    input.requires_grad_();
    pipeline->train_step(input, target, mean_square,
                         one_forward_one_backward(2, 2));
    return input.grad();
  };
  const Tensor first = step();
  const Tensor once = pipeline->parameters()[0].grad().clone();
  ASSERT_TRUE(first.defined());
  EXPECT_EQ(first.size(0), 4);
  EXPECT_GT(first.abs().sum().item<double>(), 0);
  EXPECT_TRUE(step().equal(first));
  EXPECT_TRUE(pipeline->parameters()[0].grad().equal(once + once));
}

TEST_F(TrainStep, HooksOfParametersAreCalledOnceWithTheSum) {
  GPipe pipeline(testing::linear_model(), options_for({"1f1b", 2, 3, 1}, 6));
  std::vector<Tensor> seen;
  pipeline->parameters()[0].register_hook(
      [&](const Tensor& grad) { seen.push_back(grad); });
  pipeline->train_step(torch::randn({6, 6}, torch::kDouble).to(device()),
                       torch::zeros({6, 3}, torch::kDouble), mean_square,
                       one_forward_one_backward(2, 3));
  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_TRUE(seen[0].equal(pipeline->parameters()[0].grad()));
}

// Gradients flow into a graph that the pipeline has made, and to hooks. Both
// call the pipeline again.
TEST_F(TrainStep, ThePipelineMayBeCalledWhileGradientsAreAdded) {
  const auto make = [] {
    torch::manual_seed(5);
    nn::Sequential model(nn::Linear(3, 3), nn::Tanh(), nn::Linear(3, 3));
    model->to(torch::kDouble);
    return model;
  };
  const Tensor input = torch::randn({4, 3}, torch::kDouble);
  const Tensor target = torch::randn({4, 3}, torch::kDouble);

  nn::Sequential plain = make();
  plain->to(reference_device());
  const Tensor x = input.to(reference_device());
  const auto loss = mean_square(plain->forward(plain->forward(x)),
                                target.to(reference_device()));
  const auto expected = torch::autograd::grad({loss}, plain->parameters());

  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    GPipe pipeline(make(), options_for({"1f1b", 2, 2, 1}, 3, mode));
    int calls = 0;
    pipeline->parameters()[0].register_hook([&](Tensor grad) {
      pipeline->forward(input.to(device()));
      ++calls;
      return grad;
    });
    const Tensor first = pipeline->forward(input.to(device())).to(device());
    pipeline->train_step(first, target, mean_square,
                         one_forward_one_backward(2, 2));
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(difference(grads_of(*pipeline), expected, 1e-12, 1e-12), "");
  }
}

TEST_F(TrainStep, GivesTheOutputsIfAskedFor) {
  torch::manual_seed(0);
  nn::Sequential layers = testing::linear_model();
  const Tensor input = torch::randn({5, 6}, torch::kDouble);
  const Tensor expected = layers->forward(input).detach();
  GPipe pipeline(layers, options_for({"1f1b", 2, 3, 1}, 6));
  const StepResult result = pipeline->train_step(
      input.to(device()), torch::zeros({5, 3}, torch::kDouble), mean_square,
      one_forward_one_backward(2, 3), TrainOptions().outputs(true));
  EXPECT_TRUE(torch::allclose(result.output().cpu(), expected, 1e-12, 1e-14));
  EXPECT_FALSE(result.output().requires_grad());
  EXPECT_FALSE(result.loss.requires_grad());
}

TEST_F(TrainStep, TuplesGoInAndOut) {
  struct SwapImpl : nn::Module {
    std::tuple<Tensor, Tensor> forward(std::tuple<Tensor, Tensor> x) {
      return {std::get<1>(x) * weight, std::get<0>(x) * weight};
    }
    Tensor weight =
        register_parameter("weight", torch::full({1}, 2.0, torch::kDouble));
  };
  nn::Sequential layers(std::make_shared<SwapImpl>(),
                        std::make_shared<SwapImpl>());
  GPipe pipeline(layers, GPipeOptions({1, 1}).devices(devices(2)));
  using Pair = std::tuple<Tensor, Tensor>;
  const Pair input{torch::ones({4, 1}, torch::kDouble).to(device()),
                   torch::ones({4, 2}, torch::kDouble).to(device())};
  const Pair target{torch::zeros({4}, torch::kDouble),
                    torch::zeros({4}, torch::kLong)};
  const StepResult result = pipeline->train_step<Pair>(
      input, target,
      [](const Pair& output, const Pair& target) {
        EXPECT_EQ(std::get<1>(target).scalar_type(), torch::kLong);
        EXPECT_EQ(std::get<0>(target).size(0), 2);
        return std::get<0>(output).sum() + std::get<1>(output).mean();
      },
      one_forward_one_backward(2, 2), TrainOptions().outputs(true));
  // Two rows of one element, and a mean, each doubled by two layers.
  EXPECT_EQ(result.loss.item<double>(), 2 * 4 + 4);
  EXPECT_EQ(std::get<1>(result.output<Pair>()).size(1), 2);
}

TEST_F(TrainStep, AForwardOnlyScheduleComputesLossesAlone) {
  GPipe pipeline(testing::linear_model(), options_for({"1f1b", 2, 2, 1}, 6));
  const Tensor input = torch::randn({4, 6}, torch::kDouble).to(device());
  const Tensor target = torch::zeros({4, 3}, torch::kDouble);
  const auto with = [&](const Schedule& schedule) {
    return pipeline->train_step(input, target, mean_square, schedule)
        .loss.item<double>();
  };
  const double loss = with(forward_only(2, 2));
  for (const Tensor& each : pipeline->parameters()) {
    EXPECT_FALSE(each.grad().defined());
  }
  EXPECT_EQ(loss, with(one_forward_one_backward(2, 2)));
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(loss, with(forward_only(2, 2)));
  EXPECT_THAT(error_of([&] { with(one_forward_one_backward(2, 2)); }),
              HasSubstr("needs gradients enabled"));
}

// A model that counts the calls of one layer in each of two partitions.
struct Counted {
  std::vector<int> calls = {0, 0}, backwards = {0, 0};
  nn::Sequential model() {
    nn::Sequential layers;
    for (int j = 0; j < 2; ++j) {
      layers->push_back(layer([this, j](Tensor x) {
        ++calls[j];
        return x * 2;
      }));
      layers->push_back(nn::Linear(nn::LinearOptions(2, 2).bias(false)));
    }
    layers->to(torch::kDouble);
    return layers;
  }
};

TEST_F(TrainStep, RecomputesAreThoseOfTheScheduleElseThoseOfTheMode) {
  const Tensor input = torch::ones({4, 2}, torch::kDouble).to(device());
  const Tensor target = torch::zeros({4, 2}, torch::kDouble);
  const auto calls = [&](Checkpoint mode, const Schedule& schedule,
                         bool training = true) {
    Counted counted;
    GPipe pipeline(counted.model(),
                   GPipeOptions({2, 2}).devices(devices(2)).checkpoint(mode));
    pipeline->train(training);
    pipeline->train_step(input, target, mean_square, schedule);
    return counted.calls;
  };
  const Schedule plain = one_forward_one_backward(2, 4);
  EXPECT_THAT(calls(Checkpoint::kNever, plain), ElementsAre(4, 4));
  EXPECT_THAT(calls(Checkpoint::kExceptLast, plain), ElementsAre(7, 7));
  EXPECT_THAT(calls(Checkpoint::kAlways, plain), ElementsAre(8, 8));
  EXPECT_THAT(calls(Checkpoint::kAlways, plain, false), ElementsAre(4, 4));
  for (const auto placement :
       {RecomputePlacement::kBeforeBackward, RecomputePlacement::kWithBackward,
        RecomputePlacement::kAhead}) {
    const Schedule two = with_recompute(
        plain, [](int i) { return i % 2 == 1; }, placement);
    EXPECT_THAT(calls(Checkpoint::kAlways, two), ElementsAre(6, 6));
  }
}

TEST_F(TrainStep, TheTimelineHasTheActionsOfTheSchedule) {
  const Schedule schedule = zero_bubble_h1(2, 3);
  GPipe pipeline(testing::linear_model(), options_for({"zb-h1", 2, 3, 1}, 6));
  const StepResult result =
      pipeline->train_step(torch::randn({6, 6}, torch::kDouble).to(device()),
                           torch::zeros({6, 3}, torch::kDouble), mean_square,
                           schedule, TrainOptions().timeline(true));
  ASSERT_TRUE(result.timeline.has_value());
  ASSERT_THAT(result.timeline->ranks, SizeIs(2));
  double last = 0;
  for (std::size_t r = 0; r < 2; ++r) {
    ASSERT_THAT(result.timeline->ranks[r], SizeIs(schedule.ranks[r].size()));
    double before = 0;
    for (std::size_t k = 0; k < schedule.ranks[r].size(); ++k) {
      const Span& span = result.timeline->ranks[r][k];
      EXPECT_EQ(span.action, schedule.ranks[r][k]);
      EXPECT_GE(span.start, before);
      EXPECT_GE(span.end, span.start);
      before = span.end;
    }
    last = std::max(last, before);
  }
  EXPECT_EQ(result.timeline->makespan, last);
}

// ---- Tests errors and refusals of training steps, and the placement of
// stages.

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
    if (mode == Checkpoint::kNever) {
      EXPECT_EQ(error, "");
      EXPECT_EQ(difference(grads_of(*pipeline), expected, 1e-5, 1e-8), "");
      continue;
    }
    EXPECT_EQ(error,
              "c10::Error: the loss function changes its target in place, so "
              "that the checkpointed forward cannot be computed again from it; "
              "let it work on target.clone() (in partition 1, micro-batch 0, "
              "forward (checkpointed), layer 'loss')");
    for (const Tensor& each : pipeline->parameters()) {
      EXPECT_FALSE(each.grad().defined());
    }
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
    const auto found = testing::training_step(pipeline, input);
    EXPECT_EQ(difference(found, expected), "");
  }
}

}  // namespace
}  // namespace gpipe
