// Tests what GPipe has from PipelineModule beside train_step().
#include "gpipe/pipeline_module.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/layers.h"

namespace gpipe {
namespace {

using testing::device;
using testing::mean_square;
using testing::options;

// A model whose output depends on the mode.
torch::nn::Sequential model_with_modes() {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4),
      torch::nn::Dropout(0.5), torch::nn::Linear(4, 2));
}

TEST(Evaluate, GivesTheLossesOfTheEvaluationModeAndChangesNothing) {
  auto model = model_with_modes();
  const auto input = torch::randn({6, 3}), target = torch::randn({6, 2});
  model->eval();
  std::vector<torch::Tensor> wanted;
  for (int64_t row = 0; row < 6; row += 2) {
    const torch::NoGradGuard no_grad;
    wanted.push_back(mean_square(model->forward(input.narrow(0, row, 2)),
                                 target.narrow(0, row, 2)));
  }
  model->train();
  model[1]->eval();  // a frozen BatchNorm keeps its mode
  const auto running_mean = model->buffers()[0].clone();

  GPipe pipeline(model, options({2, 2}, 3));
  const StepResult result =
      pipeline->evaluate(input.to(device()), target, mean_square);

  ASSERT_EQ(result.losses.size(), 3);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_TRUE(torch::allclose(result.losses[i].cpu(), wanted[i]));
    EXPECT_FALSE(result.losses[i].requires_grad());
  }
  EXPECT_TRUE(pipeline->is_training());
  EXPECT_FALSE(model[1]->is_training());
  EXPECT_TRUE(model[2]->is_training());
  EXPECT_TRUE(torch::equal(model->buffers()[0].cpu(), running_mean));
  for (const torch::Tensor& parameter : pipeline->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
}

TEST(Evaluate, SplitsFewRowsIntoFewerMicroBatches) {
  GPipe pipeline(model_with_modes(), options({2, 2}, 4));
  const auto losses = [&](int64_t rows) {
    return pipeline
        ->evaluate(torch::ones({rows, 3}).to(device()), torch::ones({rows, 2}),
                   mean_square)
        .losses.size();
  };
  EXPECT_EQ(losses(8), 4);
  EXPECT_EQ(losses(5), 3);  // of 2, 2 and 1 rows
  EXPECT_EQ(losses(1), 1);
}

TEST(Evaluate, OfAStageThatFailsTellsWhereAndRestoresTheMode) {
  GPipe pipeline(model_with_modes(), options({2, 2}, 2));
  const torch::Tensor target = torch::ones({2, 2});
  const torch::Tensor none;
  const torch::Tensor good = torch::ones({2, 3}).to(device());
  // A call that is refused before it begins has no place.
  const std::vector<std::function<void()>> refused = {
      [&] {
        pipeline->train_step(good, target, mean_square, fill_drain(3, 2));
      },
      [&] { pipeline->evaluate(none, target, mean_square); },
      [&] { pipeline->forward(none); },
      // What is no tensor is refused as late.
      [&] { pipeline->train_step(7, target, mean_square, fill_drain(2, 2)); },
      [&] { pipeline->evaluate(std::string(), target, mean_square); },
      [&] { pipeline->forward(std::make_pair(good, good)); }};
  for (const auto& call : refused) {
    EXPECT_THROW(pipeline->evaluate(torch::ones({2, 5}).to(device()), target,
                                    mean_square),
                 c10::Error);
    ASSERT_TRUE(pipeline->last_failure().has_value());
    EXPECT_EQ(pipeline->last_failure()->partition, 0);
    EXPECT_TRUE(pipeline->is_training());
    EXPECT_THROW(call(), c10::Error);
    EXPECT_EQ(pipeline->last_failure(), std::nullopt);
  }
}

// A layer with the parameters of another layer.
struct SameParameters : torch::nn::Module {
  explicit SameParameters(torch::nn::Linear other)
      : inner(register_module("inner", other)) {}
  torch::Tensor forward(torch::Tensor x) { return inner(x); }
  torch::nn::Linear inner;
};

TEST(OptimizerParameters, HaveASharedParameterOnce) {
  torch::nn::Linear shared(2, 2);
  torch::nn::Sequential twice(shared, SameParameters(shared));
  const GPipe pipeline(twice, options({2}));
  EXPECT_EQ(pipeline->optimizer_parameters().size(), 2);
}

TEST(OptimizerParameters, HaveNoFrozenParameters) {
  torch::nn::Linear frozen(2, 2), trained(2, 2);
  frozen->weight.requires_grad_(false);
  const GPipe pipeline(torch::nn::Sequential(frozen, trained), options({2}));
  EXPECT_EQ(pipeline->optimizer_parameters().size(), 3);
}

// Trains one step through what both pipelines have in common.
double train(PipelineModule& pipeline, const Schedule& schedule) {
  const auto input = torch::ones({4, 3}).to(pipeline.device());
  const auto result =
      pipeline.train_step(input, torch::zeros({4, 2}), mean_square, schedule);
  pipeline.share_parameters();
  return result.loss.item<double>();
}

TEST(PipelineModule, TrainsThroughAReference) {
  auto model = model_with_modes();
  model->eval();
  GPipe pipeline(model, options({2, 2}));
  const double loss = train(*pipeline, one_forward_one_backward(2, 2));
  const torch::NoGradGuard no_grad;
  const auto plain = pipeline->forward(torch::ones({4, 3}).to(device()));
  EXPECT_NEAR(loss, plain.pow(2).mean().item<double>(), 1e-6);
  EXPECT_EQ(pipeline->device(), pipeline->devices()[0]);
  EXPECT_TRUE(pipeline->any(true));
  EXPECT_FALSE(pipeline->any(false));
}

// A layer that counts its calls by mode, and during whose first call other
// code may run.
struct ModesImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    if (const auto run = std::exchange(during_first_call, nullptr)) run();
    ++(is_training() ? trained : evaluated);
    return x * 1;
  }
  std::function<void()> during_first_call;
  std::atomic<int> trained = 0, evaluated = 0;
};
TORCH_MODULE(Modes);

TEST(Evaluate, WaitsForTheStepOfAnotherThreadBeforeItChangesModes) {
  Modes modes;
  torch::nn::Sequential model(torch::nn::Linear(3, 2), modes);
  GPipe pipeline(model, options({2}, 4));
  const auto input = torch::ones({4, 3}), target = torch::ones({4, 2});
  std::thread other;
  modes->during_first_call = [&] {
    other = std::thread(
        [&] { pipeline->evaluate(input.to(device()), target, mean_square); });
    // Gives the other thread the time to change modes too early.
    for (int k = 0; k < 1000; ++k) std::this_thread::yield();
  };
  pipeline->train_step(input.to(device()), target, mean_square,
                       fill_drain(1, 4));
  other.join();
  // Cells of the step are recomputed.
  EXPECT_GE(modes->trained, 4);
  EXPECT_EQ(modes->evaluated, 4);
  EXPECT_TRUE(pipeline->is_training());
}

TEST(Evaluate, OfTwoThreadsGivesBackTheModeOfBefore) {
  Modes modes;
  GPipe pipeline(torch::nn::Sequential(torch::nn::Linear(3, 2), modes),
                 options({2}, 1));
  const auto input = torch::ones({4, 3}), target = torch::ones({4, 2});
  const auto evaluate = [&] {
    for (int k = 0; k < 50; ++k) {
      pipeline->evaluate(input.to(device()), target, mean_square);
    }
  };
  std::thread other(evaluate);
  evaluate();
  other.join();
  EXPECT_EQ(modes->trained, 0);
  EXPECT_EQ(modes->evaluated, 100);
  EXPECT_TRUE(pipeline->is_training());
}

}  // namespace
}  // namespace gpipe
