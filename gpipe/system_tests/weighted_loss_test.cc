// Tests losses with weights, batches that are already split, and unsplit
// elements, with all schedules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <future>
#include <mutex>
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
#include "training/grad_scaler.h"

namespace gpipe {
namespace {

using testing::AddMask;
using testing::cut;
using testing::device;
using testing::devices;
using testing::difference;
using testing::EndMask;
using testing::error_of;
using testing::GiveWeight;
using testing::grads_of;
using ::testing::HasSubstr;
using testing::kIgnored;
using testing::mean_square;
using testing::Sequences;
using testing::TakeWeight;
using testing::token_loss;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kSequences = 8;

// Returns `all` on the device of the first partition.
Microbatches<Tensor> parts_of(const std::vector<Tensor>& all) {
  Microbatches<Tensor> result;
  for (const Tensor& each : all) result.parts.push_back(each.to(device()));
  return result;
}

GPipe pipeline_for(nn::Sequential model, const Schedule& schedule,
                   Checkpoint mode) {
  return GPipe(model, testing::options_for(
                          schedule, static_cast<int64_t>(model->size()), mode));
}

// Calls `use(name, schedule)` for every schedule with
// backwards, on one, two and four ranks.
template <typename Use>
void for_schedules(Use use) {
  for (const std::string& name : training_schedule_names()) {
    for (const int ranks : {1, 2, 4}) {
      const auto schedule = testing::schedule_of(
          name, ranks, kSequences, fixed_stages_per_rank(name).value_or(1));
      if (!schedule) continue;
      use(name + " on " + std::to_string(ranks) + " ranks", *schedule);
    }
  }
}

double largest_difference(
    const nn::Module& module,
    const std::vector<std::pair<std::string, Tensor>>& grads) {
  double largest = 0;
  const auto parameters = module.named_parameters();
  for (const auto& [name, grad] : grads) {
    const double difference =
        (parameters[name].grad().cpu() - grad).abs().max().item<double>();
    EXPECT_FALSE(std::isnan(difference)) << name;
    largest = std::max(largest, difference);
  }
  return largest;
}

TEST(WeightedLossTest, GradientsAreThoseOfOnePlainStepWithAllSchedules) {
  const Sequences batch = testing::sequences(testing::token_lengths(), 1);
  const auto plain =
      testing::plain_token_grads(testing::token_model(), {batch});
  int64_t count = 0;
  for (const Tensor& each : batch.targets) {
    count += (each != kIgnored).sum().item<int64_t>();
  }
  for_schedules([&](const std::string& name, const Schedule& schedule) {
    for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
      GPipe pipeline = pipeline_for(testing::token_model(), schedule, mode);
      const StepResult result =
          pipeline->train_step(parts_of(batch.tokens), parts_of(batch.targets),
                               token_loss, schedule);
      EXPECT_LT(largest_difference(*pipeline, plain), 1e-12) << name;
      EXPECT_EQ(*result.weight, count) << name;
      EXPECT_EQ(result.losses.size(), 8u);
      EXPECT_EQ(result.losses[2].item<double>(), 0);
    }
  });
}

TEST(WeightedLossTest, BitsDoNotDependOnTheCutTheModeOrTheOrder) {
  const Sequences batch = testing::sequences(testing::token_lengths(), 2);
  std::vector<Tensor> expected;
  for_schedules([&](const std::string& name, const Schedule& schedule) {
    GPipe pipeline =
        pipeline_for(testing::token_model(), schedule, Checkpoint::kExceptLast);
    pipeline->train_step(parts_of(batch.tokens), parts_of(batch.targets),
                         token_loss, schedule,
                         TrainOptions().fixed_sum_order(true));
    const auto grads = grads_of(*pipeline);
    if (expected.empty()) expected = grads;
    EXPECT_EQ(difference(grads, expected), "") << name;
  });
}

// Parameters, gradients and their sums are bfloat16.
TEST(WeightedLossTest, InBFloat16GradientsHaveTheBitsOfPlainLibTorch) {
  const Sequences batch = testing::sequences(testing::token_lengths(), 6);
  const auto make = [] {
    nn::Sequential model = testing::token_model();
    model->to(torch::kBFloat16);
    return model;
  };
  nn::Sequential reference = make();
  reference->to(testing::reference_device());
  const auto plain = testing::added_token_grads(reference, batch);
  for_schedules([&](const std::string& name, const Schedule& schedule) {
    for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
      GPipe pipeline = pipeline_for(make(), schedule, mode);
      const StepResult result =
          pipeline->train_step(parts_of(batch.tokens), parts_of(batch.targets),
                               testing::token_loss_in_float, schedule,
                               TrainOptions().fixed_sum_order(true));
      EXPECT_EQ(result.loss.scalar_type(), torch::kFloat);
      const auto parameters = pipeline->named_parameters();
      for (const auto& [key, grad] : plain) {
        EXPECT_EQ(parameters[key].grad().scalar_type(), torch::kBFloat16);
        EXPECT_TRUE(parameters[key].grad().cpu().equal(grad))
            << name << ", " << key;
      }
    }
  });
}

TEST(WeightedLossTest, MetricsAreAddedUpAndKeepTheirDtype) {
  GPipe pipeline(nn::Sequential(nn::Identity(), nn::Linear(2, 1)),
                 testing::options({1, 1}, 4));
  const auto loss = [](const Tensor& output, const Tensor& target) {
    WeightedLoss result{output.sum(), torch::tensor(0.5)};
    result.metrics.emplace_back("rows", torch::tensor(target.size(0)));
    const bool any_large = (target > 2).any().item<bool>();
    result.metrics.emplace_back("large", torch::tensor(any_large));
    if (any_large) {
      result.metrics.emplace_back("late", torch::tensor(0.25f));
    }
    return result;
  };
  const StepResult result =
      pipeline->train_step(torch::ones({4, 2}).to(device()), torch::arange(4.),
                           loss, fill_drain(2, 4));
  ASSERT_EQ(result.metrics.size(), 3u);
  EXPECT_EQ(result.metric("rows").scalar_type(), torch::kLong);
  EXPECT_EQ(result.metric("rows").item<int64_t>(), 4);
  EXPECT_EQ(result.metric("large").item<int64_t>(), 1);
  EXPECT_EQ(result.metric("late").item<float>(), 0.25f);
  EXPECT_EQ(*result.weight, 2);
}

TEST(WeightedLossTest, EvaluateGivesTheQuotientWithoutGradients) {
  const Sequences batch = testing::sequences(testing::token_lengths(), 3);
  GPipe pipeline(testing::token_model(), testing::options({4, 4}, 3));
  const StepResult result = pipeline->evaluate(
      parts_of(batch.tokens), parts_of(batch.targets), token_loss);
  double sum = 0;
  for (const Tensor& each : result.losses) sum += each.item<double>();
  EXPECT_EQ(result.losses.size(), 8u);
  EXPECT_EQ(result.loss.item<double>(), sum / *result.weight);
  EXPECT_FALSE(pipeline->parameters()[0].grad().defined());
}

TEST(WeightedLossTest, ATotalWeightOfZeroIsAnErrorAndChangesNoGrad) {
  Sequences batch = testing::sequences({4, 5}, 4);
  for (Tensor& each : batch.targets) each.fill_(kIgnored);
  GPipe pipeline(testing::token_model(), testing::options({4, 4}));
  for (const Tensor& each : pipeline->parameters()) {
    each.mutable_grad() = torch::ones_like(each);
  }
  const auto step = [&] {
    pipeline->train_step(parts_of(batch.tokens), parts_of(batch.targets),
                         token_loss, one_forward_one_backward(2, 2));
  };
  EXPECT_THAT(error_of(step),
              HasSubstr("c10::ValueError: the total of WeightedLoss::weight "
                        "over all micro-batches and replicas is 0, but the "
                        "loss is divided by it"));
  for (const Tensor& each : pipeline->parameters()) {
    EXPECT_TRUE(
        each.grad().cpu().equal(torch::ones(each.sizes(), each.dtype())));
  }
  batch.targets[0].fill_(1);
  EXPECT_EQ(error_of(step), "");
}

// The gradient that the second layer adds in its backward would stay undivided.
TEST(WeightedLossTest, RefusesGradientsThatLayersAddThemselves) {
  const nn::Linear linear(4, 4);
  nn::Sequential model(linear, testing::adds_to_grad(linear));
  GPipe pipeline(model, testing::options({1, 1}));
  const Tensor x = torch::ones({4, 4}).to(device());
  const auto step = [&](auto loss) {
    pipeline->train_step(x, x, loss, one_forward_one_backward(2, 2));
  };
  const auto weighted = [](const Tensor& output, const Tensor&) {
    return WeightedLoss{output.sum(), torch::tensor(8)};
  };
  const auto expect_refused = [&] {
    EXPECT_THAT(error_of([&] { step(weighted); }),
                HasSubstr("the layers of partition 0 have added to the "
                          "gradient of parameter '0.weight' themselves"));
  };
  const auto expect_gradients = [&](double value) {
    for (const Tensor& each : linear->parameters()) {
      EXPECT_TRUE(each.grad().cpu().equal(torch::full(each.sizes(), value)));
    }
  };
  expect_refused();
  EXPECT_FALSE(linear->weight.grad().defined());
  EXPECT_FALSE(linear->bias.grad().defined());
  step([](const Tensor& output, const Tensor&) { return output.mean(); });
  expect_gradients(2.25);
  // LibTorch adds to a gradient in place.
  expect_refused();
  expect_gradients(4.25);
}

// Losses of small integers, whose sums are exact in any order.
TEST(WeightedLossTest, OtherThreadsMayAddToTheSameGradients) {
  const nn::Linear linear(nn::LinearOptions(4, 4).bias(false));
  GPipe pipeline(nn::Sequential(linear), testing::options({1}));
  const Tensor x = torch::ones({4, 4}).to(device());
  constexpr int kSteps = 200;
  const auto in_a_thread = [&](const auto& step) {
    return std::async(std::launch::async, [&] {
      return error_of([&] {
        for (int k = 0; k < kSteps; ++k) step();
      });
    });
  };
  const auto weighted = [&] {
    pipeline->train_step(
        x, x,
        [](const Tensor& output, const Tensor&) {
          return WeightedLoss{output.sum(), torch::tensor(2)};
        },
        one_forward_one_backward(1, 2));
  };
  const auto plain = [&] { linear->weight.sum().backward(); };
  auto one = in_a_thread(weighted), two = in_a_thread(weighted),
       three = in_a_thread(plain);
  EXPECT_EQ(one.get(), "");
  EXPECT_EQ(two.get(), "");
  EXPECT_EQ(three.get(), "");
  // Each element adds 4 / 4 in a step.
  EXPECT_TRUE(linear->weight.grad().cpu().equal(torch::full({4, 4}, 600.)));
}

TEST(WeightedLossTest, ALossFunctionMayWriteAllResultsIntoOneTensor) {
  GPipe pipeline(nn::Sequential(nn::Linear(4, 1)),
                 testing::options({1}, 3, Checkpoint::kNever));
  const Tensor x = torch::ones({3, 4}).to(device());
  const Tensor weight = torch::zeros({}).to(device()), metric = weight.clone();
  const auto result = pipeline->train_step(
      x, torch::arange(3.).to(device()),
      [&](const Tensor& output, const Tensor& target) {
        weight.copy_(target[0] + 1);
        metric.copy_(weight * 10);
        WeightedLoss loss{output.sum(), weight};
        loss.metrics.emplace_back("tens", metric);
        return loss;
      },
      one_forward_one_backward(1, 3));
  EXPECT_EQ(result.weight, 6);
  EXPECT_EQ(result.metrics[0].second.item<double>(), 60);
  EXPECT_TRUE(
      pipeline->parameters()[1].grad().cpu().equal(torch::full({1}, 0.5)));
  const auto evaluated =
      pipeline->evaluate(x, torch::arange(3.).to(device()),
                         [&](const Tensor&, const Tensor& target) {
                           return weight.copy_(target[0]);
                         });
  EXPECT_EQ(evaluated.loss.item<float>(), 1);
}

TEST(WeightedLossTest, RefusesAResultThatIsNoScalarWithTheRemedy) {
  GPipe pipeline(nn::Sequential(nn::Linear(2, 1)), testing::options({1}));
  const auto error = [&](WeightedLoss (*loss)(const Tensor&, const Tensor&)) {
    return error_of([&] {
      pipeline->train_step(torch::ones({2, 2}).to(device()), torch::ones({2}),
                           loss, fill_drain(1, 1));
    });
  };
  EXPECT_THAT(error([](const Tensor& y, const Tensor&) {
                return WeightedLoss{y, y.sum()};
              }),
              HasSubstr("WeightedLoss::sum must be a floating-point tensor "
                        "with one element"));
  EXPECT_THAT(error([](const Tensor& y, const Tensor&) {
                return WeightedLoss{y.sum(), Tensor()};
              }),
              HasSubstr("WeightedLoss::weight must be a real tensor with one "
                        "element, but it is undefined"));
  EXPECT_THAT(error([](const Tensor& y, const Tensor&) {
                return WeightedLoss{y.sum(), y.sum(), {{"rows", y}}};
              }),
              HasSubstr("the metric 'rows' must be a real tensor with one "
                        "element"));
}

TEST(WeightedLossTest, AScaledLossGivesTheSameBits) {
  const Sequences batch = testing::sequences(testing::token_lengths(), 5);
  const Schedule schedule = named_schedule("zb-h1", 2, 8, 1);
  const auto grads = [&](const auto& loss, double scale) {
    GPipe pipeline =
        pipeline_for(testing::token_model(), schedule, Checkpoint::kExceptLast);
    pipeline->train_step(parts_of(batch.tokens), parts_of(batch.targets), loss,
                         schedule, TrainOptions().check_finite(true));
    std::vector<Tensor> result = grads_of(*pipeline);
    for (Tensor& each : result) each /= scale;
    return result;
  };
  const GradScaler scaler(GradScalerOptions().init_scale(1024));
  const auto plain = grads(token_loss, 1);
  const auto scaled = grads(scaler.scaled(token_loss), 1024);
  EXPECT_EQ(difference(plain, scaled), "");
}

TEST(MicrobatchesTest, ForwardGivesOnePartForEachAndTheirGradients) {
  for (const Checkpoint mode : testing::kModes) {
    nn::Sequential plain = testing::token_model();
    plain->to(testing::reference_device());
    GPipe pipeline(testing::token_model(),
                   testing::options({3, 5}, /*chunks=*/2, mode));
    const Sequences batch = testing::sequences({4, 9, 1}, 6);
    const auto output = pipeline->forward(parts_of(batch.tokens));
    ASSERT_EQ(output.parts.size(), 3u);
    Tensor sum, plain_sum;
    for (const std::size_t i : {0, 2}) {  // the output of part 1 is not used
      const Tensor expected =
          plain->forward(batch.tokens[i].to(testing::reference_device()));
      EXPECT_TRUE(output.parts[i].cpu().equal(expected.cpu()));
      sum = sum.defined() ? sum + output.parts[i].pow(2).sum()
                          : output.parts[i].pow(2).sum();
      plain_sum = plain_sum.defined() ? plain_sum + expected.pow(2).sum()
                                      : expected.pow(2).sum();
    }
    sum.backward();
    plain_sum.backward();
    EXPECT_EQ(difference(grads_of(*pipeline), grads_of(*plain), 1e-12, 1e-14),
              "");
  }
}

TEST(MicrobatchesTest, GradientsReachTheTensorsOfEachPart) {
  GPipe pipeline(nn::Sequential(nn::Linear(2, 2), nn::Linear(2, 1)),
                 testing::options({1, 1}));
  std::vector<Tensor> leaves;
  Microbatches<Tensor> input;
  for (const int64_t rows : {3, 1}) {
    leaves.push_back(torch::ones({rows, 2}).to(device()).requires_grad_());
    input.parts.push_back(leaves.back());
  }
  auto output = pipeline->forward(input);
  (output.parts[0].sum() + output.parts[1].sum() * 2).backward();
  EXPECT_EQ(leaves[0].grad().sizes(), leaves[0].sizes());
  EXPECT_TRUE(
      leaves[1].grad().cpu().equal(leaves[0].grad()[0].cpu().view({1, 2}) * 2));
}

TEST(UnsplitTest, EveryMicrobatchGetsTheElementWholeAndItsGradientsAddUp) {
  for (const Checkpoint mode : testing::kModes) {
    GPipe pipeline(nn::Sequential(AddMask(), AddMask(), EndMask()),
                   testing::options({1, 1, 1}, 3, mode).unsplit({1}));
    const Tensor x = torch::arange(12, torch::kDouble).view({6, 2});
    Tensor mask = torch::tensor({0.5, 0.25}, torch::kDouble)
                      .to(device())
                      .requires_grad_();
    const Tensor output =
        pipeline->forward(std::make_tuple(x.to(device()), mask));
    EXPECT_TRUE(output.cpu().equal(x * 4 + mask.detach().cpu() * 4));
    output.sum().backward();
    EXPECT_TRUE(mask.grad().cpu().equal(torch::full({2}, 24., torch::kDouble)));

    mask.mutable_grad() = Tensor();
    pipeline->train_step(
        std::make_tuple(x.to(device()), mask), x,
        [](const Tensor& y, const Tensor&) { return y.sum(1).mean(); },
        one_forward_one_backward(3, 4));
    EXPECT_TRUE(mask.grad().cpu().allclose(torch::full({2}, 4., torch::kDouble),
                                           1e-15));
  }
}

// In bfloat16, 256 + 1 is 256.
TEST(UnsplitTest, GradientsAddUpInTheDtypeThatTheElementHasChosen) {
  using Tensors = std::vector<Tensor>;
  GPipe pipeline(nn::Sequential(testing::layer<Tensor, Tensors>(
                     [](Tensors value) { return value[0] * value[1]; })),
                 testing::options({1}, 3).unsplit({1}));
  const Tensor x =
      torch::tensor({256., 1., 1.}).to(device()).to(torch::kBFloat16);
  Tensor scale = torch::ones({1}, x.options()).requires_grad_();
  scale.set_grad_dtype(torch::kFloat);
  pipeline->forward(Tensors{x, scale}).sum().backward();
  EXPECT_EQ(scale.grad().item<float>(), 258);
  scale.mutable_grad() = Tensor();
  pipeline->train_step(
      Tensors{x, scale}, x,
      [](const Tensor& y, const Tensor&) { return y.sum() * 3; },
      fill_drain(1, 3));
  EXPECT_EQ(scale.grad().item<float>(), 258);
}

// As a mask that is there in some calls.
TEST(UnsplitTest, AnElementMayBeUndefined) {
  using Tensors = std::vector<Tensor>;
  const auto masked = [] {
    return testing::layer<Tensors, Tensors>([](Tensors value) {
      if (value[1].defined()) value[0] = value[0] * value[1];
      return value;
    });
  };
  GPipe pipeline(nn::Sequential(masked(), masked()),
                 testing::options({1, 1}, 2).unsplit({1}));
  const Tensor x = testing::ones({4, 3});
  for (const Tensor& mask : {Tensor(), testing::ones({1, 3}) * 3, Tensor()}) {
    const auto found = pipeline->forward<Tensors>(Tensors{x, mask});
    EXPECT_TRUE(found[0].cpu().equal((mask.defined() ? x * 9 : x).cpu()));
    EXPECT_EQ(found[1].defined(), mask.defined());
  }
}

TEST(UnsplitTest, GoesToEachDeviceOnceAStep) {
  if (device().is_cpu()) GTEST_SKIP() << "no copies between CPU partitions";
  GPipe pipeline(nn::Sequential(AddMask(), AddMask(), EndMask()),
                 testing::options({1, 1, 1}).unsplit({1}));
  const Tensor x = torch::ones({8, 3}).to(device());
  const Tensor mask = torch::ones({3}).to(device());
  const StepResult result = pipeline->train_step(
      std::make_tuple(x, mask), x,
      [](const Tensor& y, const Tensor&) { return y.mean(); },
      forward_only(3, 4), TrainOptions().timeline(true));
  double bytes = 0;
  for (const auto& each : result.timeline->transfers) bytes += each.bytes;
  // Each boundary between devices: 4 micro-batches of 2 x 3 floats, and 3
  // floats once.
  const int boundaries = (device(0) != device(1)) + (device(1) != device(2));
  EXPECT_EQ(bytes, boundaries * (4 * 24 + 12));
}

TEST(TiedWeightTest, GoesToEachDeviceOnceAStep) {
  if (device().is_cpu()) GTEST_SKIP() << "no copies between CPU partitions";
  GPipe pipeline(nn::Sequential(GiveWeight(), nn::Identity(), TakeWeight()),
                 testing::options({1, 1, 1}));
  const Tensor x = torch::ones({8, 3}).to(device());
  const int boundaries = (device(0) != device(1)) + (device(1) != device(2));
  for (int step = 0; step < 2; ++step) {
    const StepResult result = pipeline->train_step(
        x, x, [](const Tensor& y, const Tensor&) { return y.sum(1).mean(); },
        forward_only(3, 4), TrainOptions().timeline(true).outputs(true));
    double bytes = 0;
    for (const auto& each : result.timeline->transfers) bytes += each.bytes;
    // Each boundary between devices: 4 micro-batches of 2 x 3 floats. The
    // weight of 3 x 3 floats goes from the first device to the last.
    EXPECT_EQ(bytes, boundaries * 4 * 24 + (device(0) != device(2) ? 36 : 0));
    EXPECT_TRUE(result.output<Tensor>().cpu().equal(torch::full({8, 3}, 9.f)));
  }
}

TEST(TiedWeightTest, EachMicroBatchHasItsOwnIfALayerChangesIt) {
  struct CountImpl : nn::Module, Skippable {
    CountImpl() : Skippable({/*stash=*/{"weight"}, /*pop=*/{}}) {
      weight = register_parameter("weight", torch::ones({3, 3}));
    }
    Tensor forward(const Tensor& x) {
      {
        const torch::NoGradGuard no_grad;
        weight.add_(1);
      }
      stash("weight", weight);
      return x;
    }
    Tensor weight;
  };
  GPipe pipeline(nn::Sequential(nn::ModuleHolder<CountImpl>(), nn::Identity(),
                                TakeWeight()),
                 testing::options({1, 1, 1}).chunks(4));
  const torch::NoGradGuard no_grad;
  const Tensor y = pipeline->forward(torch::ones({8, 3}).to(device()));
  const Tensor weights = torch::arange(2.f, 6.f).repeat_interleave(2);
  EXPECT_TRUE(y.cpu().equal(3 * weights.view({8, 1}).expand({8, 3}))) << y;
}

TEST(UnsplitTest, InPlaceWorkOnTheElementIsRefused) {
  using Pair = std::tuple<Tensor, Tensor>;
  const auto change = testing::layer<Tensor, Pair>([](Pair value) {
    return std::get<0>(value) + std::get<1>(value).add_(1);
  });
  GPipe pipeline(nn::Sequential(change),
                 testing::options({1}, 2, Checkpoint::kNever).unsplit({1}));
  EXPECT_THAT(
      error_of([&] {
        pipeline->forward(std::make_tuple(torch::ones({2}).to(device()),
                                          torch::ones({2}).to(device())));
      }),
      HasSubstr("changes a tensor in place that"));
}

TEST(RowsTest, ThatDoNotDivideGiveTheGradientsOfOnePlainStep) {
  const Tensor input = torch::randn({100, 3}, torch::kDouble);
  const Tensor target = torch::randn({100, 2}, torch::kDouble);
  const auto make = [] {
    torch::manual_seed(1);
    nn::Sequential model(nn::Linear(3, 5), nn::Tanh(), nn::Linear(5, 2));
    model->to(torch::kDouble);
    return model;
  };
  nn::Sequential plain = make();
  mean_square(plain->forward(input), target).backward();
  GPipe pipeline(make(), testing::options({1, 2}, 1, Checkpoint::kNever));
  std::mutex mutex;
  std::vector<int64_t> rows;
  pipeline->train_step(
      input.to(device()), target,
      [&](const Tensor& output, const Tensor& part) {
        const std::lock_guard<std::mutex> lock(mutex);
        rows.push_back(output.size(0));
        return mean_square(output, part);
      },
      one_forward_one_backward(2, 16));
  EXPECT_EQ(std::count(rows.begin(), rows.end(), 7), 4);
  EXPECT_EQ(std::count(rows.begin(), rows.end(), 6), 12);
  EXPECT_EQ(difference(grads_of(*pipeline), grads_of(*plain), 1e-12, 1e-14),
            "");
}

TEST(RowsTest, APartWithoutRowsAddsNothingToTheMean) {
  torch::manual_seed(1);
  nn::Sequential plain(nn::Linear(3, 5), nn::Linear(5, 2));
  plain->to(torch::kDouble);
  const Tensor input = torch::randn({9, 3}, torch::kDouble);
  const Tensor target = torch::randn({9, 2}, torch::kDouble);
  const Tensor expected = mean_square(plain->forward(input), target);
  expected.backward();
  const std::vector<int64_t> rows{4, 0, 5, 0};
  for (const Schedule& schedule :
       {fill_drain(2, 4), one_forward_one_backward(2, 4),
        zero_bubble_h1(2, 4)}) {
    torch::manual_seed(1);
    nn::Sequential model(nn::Linear(3, 5), nn::Linear(5, 2));
    model->to(torch::kDouble);
    GPipe pipeline(model, testing::options({1, 1}, 1, Checkpoint::kAlways));
    const auto data = parts_of(input.split_with_sizes(rows));
    const auto targets = parts_of(target.split_with_sizes(rows));
    const auto result =
        pipeline->train_step(data, targets, mean_square, schedule,
                             TrainOptions().check_finite(true));
    EXPECT_NEAR(result.loss.item<double>(), expected.item<double>(), 1e-12);
    EXPECT_NEAR(
        pipeline->evaluate(data, targets, mean_square).loss.item<double>(),
        expected.item<double>(), 1e-12);
    EXPECT_EQ(difference(grads_of(*pipeline), grads_of(*plain), 1e-12, 1e-14),
              "");
  }
}

// The loss of no rows is NaN, and so is its product with the learned weight.
TEST(RowsTest, APartWithoutRowsAddsNothingToTheGradientOfALearnedWeight) {
  const auto loss_with = [](const Tensor& weight) {
    return [weight](const Tensor& output, const Tensor& target) {
      return mean_square(output, target) * weight;
    };
  };
  const Tensor input = torch::arange(9.).view({3, 3}) / 9;
  const Tensor target = torch::ones({3, 2});
  const auto weight = [] { return torch::full({}, 3.).requires_grad_(); };
  torch::manual_seed(1);
  nn::Sequential plain(nn::Linear(3, 2));
  const Tensor expected = weight();
  loss_with(expected)(plain->forward(input), target).backward();
  torch::manual_seed(1);
  GPipe pipeline(nn::Sequential(nn::Linear(3, 2)), testing::options({1}));
  const Tensor found = weight();
  pipeline->train_step(parts_of(input.split_with_sizes({3, 0})),
                       parts_of(target.split_with_sizes({3, 0})),
                       loss_with(found), fill_drain(1, 2));
  EXPECT_TRUE(found.grad().allclose(expected.grad())) << found.grad();
  EXPECT_EQ(difference(grads_of(*pipeline), grads_of(*plain), 1e-5, 1e-7), "");
}

// The loss of no rows is NaN, and so is the gradient that the last partition
// passes back.
TEST(RowsTest, APartWithoutRowsAddsNothingToTheGradientsOfOtherPartitions) {
  using Pair = std::tuple<Tensor, Tensor>;
  // Four elements, since kernels round a division by six differently.
  const Tensor input = torch::arange(4.).view({2, 2});
  const Tensor target = torch::ones({2, 2});
  for (const Schedule& schedule : {fill_drain(2, 2), zero_bubble_h1(2, 2)}) {
    const Tensor weight = torch::full({}, 3.).to(device()).requires_grad_();
    nn::Sequential model(
        testing::layer<Pair>(
            [=](const Tensor& x) { return Pair(x, weight * 1); }),
        testing::layer<Pair, Pair>([](Pair both) { return both; }));
    GPipe pipeline(model, testing::options({1, 1}));
    pipeline->train_step<Pair>(
        parts_of(input.split_with_sizes({2, 0})),
        parts_of(target.split_with_sizes({2, 0})),
        [](const Pair& output, const Tensor& wanted) {
          return mean_square(std::get<0>(output), wanted) * std::get<1>(output);
        },
        schedule);
    EXPECT_EQ(weight.grad().item<float>(),
              mean_square(input, target).item<float>());
  }
}

TEST(RowsTest, AMiniBatchWithoutRowsHasNoMean) {
  GPipe pipeline(nn::Sequential(nn::Linear(2, 1)), testing::options({1}));
  const Tensor input = torch::ones({0, 2}).to(device());
  const Tensor target = torch::ones({0, 1});
  const std::string what = "c10::ValueError: the input has 0 rows in total, so";
  EXPECT_THAT(error_of([&] { pipeline->evaluate(input, target, mean_square); }),
              HasSubstr(what));
  EXPECT_THAT(error_of([&] {
                pipeline->train_step(input, target, mean_square,
                                     fill_drain(1, 1));
              }),
              HasSubstr(what));
  EXPECT_FALSE(pipeline->parameters()[0].grad().defined());
  EXPECT_THAT(error_of([&] {
                pipeline->train_step(input, target, mean_square,
                                     fill_drain(1, 2));
              }),
              HasSubstr("the schedule has 2 micro-batches, but the input has 0 "
                        "rows"));
}

}  // namespace
}  // namespace gpipe
