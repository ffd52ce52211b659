// Tests that TrainOptions::check_finite names the first place of a value that
// is not finite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/skip.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::error_of;
using testing::grads_of;
using ::testing::HasSubstr;
using testing::mean_square;
using testing::options;
using ::testing::StartsWith;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int64_t kMicrobatches = 4, kRows = 8, kWidth = 3;

// The value to insert and its place. Changed only while no pipeline runs.
struct Fault {
  int64_t layer = -1, microbatch = 0;
  bool backward = false;
  double number = 0;

  bool is_here(int64_t at, bool in_backward) const {
    return at == layer && in_backward == backward &&
           current_microbatch() == microbatch;
  }
};

struct FaultyLayerImpl : nn::Module {
  FaultyLayerImpl(Fault& fault, int64_t index)
      : fault(fault),
        index(index),
        weight(register_parameter("weight",
                                  torch::ones({kWidth}, torch::kDouble))),
        bias(register_parameter("bias",
                                torch::zeros({kWidth}, torch::kDouble))) {}
  Tensor forward(Tensor x) {
    x = testing::on_backward(x * weight, [this](Tensor grad) {
      grad = grad * 1;
      if (fault.is_here(index, true)) grad[0][1] = fault.number;
      return grad;
    });
    x = (x + bias).tanh();
    if (!fault.is_here(index, false)) return x;
    const Tensor mask =
        torch::zeros({kRows / kMicrobatches, kWidth}, torch::kBool)
            .to(x.device());
    mask[1][2] = true;
    return x.masked_fill(mask, fault.number);
  }
  Fault& fault;
  int64_t index;
  Tensor weight, bias;
};
TORCH_MODULE(FaultyLayer);

// A fixture with ten layers on two partitions.
class CheckFinite : public ::testing::Test {
 protected:
  GPipe make(Checkpoint mode) {
    nn::Sequential model;
    for (int64_t k = 0; k < 10; ++k) model->push_back(FaultyLayer(fault_, k));
    return GPipe(model,
                 options({5, 5}, kMicrobatches, mode).threads_per_partition(1));
  }
  StepResult step(GPipe& pipeline, const std::string& schedule, bool check) {
    return pipeline->train_step(input_, target_, mean_square,
                                named_schedule(schedule, 2, kMicrobatches, 1),
                                TrainOptions().check_finite(check));
  }

  Fault fault_;
  Tensor input_ = torch::linspace(-1, 1, kRows* kWidth, torch::kDouble)
                      .reshape({kRows, kWidth})
                      .to(device());
  Tensor target_ = torch::ones({kRows, kWidth}, torch::kDouble);
};

const char* const kSchedules[] = {"fill-drain", "1f1b", "zb-h1"};

TEST_F(CheckFinite, NamesTheLayerAndTheMicroBatchOfAForward) {
  for (const char* const schedule : kSchedules) {
    for (const Checkpoint mode : {Checkpoint::kNever, Checkpoint::kAlways}) {
      auto pipeline = make(mode);
      fault_ = Fault();
      step(pipeline, schedule, true);
      const auto before = grads_of(*pipeline);
      for (const int64_t partition : {0, 1}) {
        fault_ = {5 * partition + 2, 2, false,
                  partition == 0 ? std::nan("") : -INFINITY};
        const std::string phase =
            mode == Checkpoint::kAlways ? "forward (checkpointed)" : "forward";
        const std::string name = std::to_string(fault_.layer);
        const std::string what =
            "the output of layer '" + name +
            "' (gpipe::(anonymous namespace)::FaultyLayerImpl) "
            "is not finite: 1 of 6 elements are " +
            (partition == 0 ? "nan" : "inf");
        const std::string place = "partition " + std::to_string(partition) +
                                  ", micro-batch 2, " + phase + ", layer '" +
                                  name + "'";
        EXPECT_EQ(error_of([&] { step(pipeline, schedule, true); }),
                  "gpipe::NonFiniteError: " + what + " (in " + place + ")");
        ASSERT_TRUE(pipeline->last_failure().has_value());
        EXPECT_EQ(pipeline->last_failure()->place(), place);
        EXPECT_EQ(pipeline->last_failure()->what, what);
        EXPECT_EQ(testing::difference(grads_of(*pipeline), before), "");
      }
    }
  }
}

TEST_F(CheckFinite, NamesTheParametersOfABackward) {
  for (const char* const schedule : kSchedules) {
    auto pipeline = make(Checkpoint::kExceptLast);
    step(pipeline, schedule, true);
    const auto before = grads_of(*pipeline);
    for (const int64_t partition : {0, 1}) {
      // The layer applies the weight before the fault and the bias after it. So
      // only the weight's gradient is affected.
      fault_ = {5 * partition + 2, 1, true, std::nan("")};
      const std::string name = std::to_string(fault_.layer);
      const std::string error =
          error_of([&] { step(pipeline, schedule, true); });
      EXPECT_THAT(error, StartsWith("gpipe::NonFiniteError: "));
      EXPECT_THAT(error,
                  HasSubstr("(in partition " + std::to_string(partition) +
                            ", micro-batch 1, backward)"));
      if (std::string(schedule) != "zb-h1") {
        EXPECT_THAT(error, HasSubstr("those of parameter '" + name +
                                     ".weight' (1 of 3 elements are nan), "));
        EXPECT_THAT(error, ::testing::Not(HasSubstr(name + ".bias")));
      } else if (partition == 1) {
        // With zb-h1 the gradients of parameters are computed later.
        EXPECT_THAT(error, HasSubstr("that of the input of partition 1 (1 of 6 "
                                     "elements are nan)"));
      }
      EXPECT_EQ(pipeline->last_failure()->phase, Phase::kBackward);
      EXPECT_EQ(testing::difference(grads_of(*pipeline), before), "");
      fault_ = Fault();
    }
  }
}

TEST_F(CheckFinite, TellsOfAGradientThatLeavesACell) {
  auto pipeline = make(Checkpoint::kNever);
  for (const Tensor& each : pipeline->parameters()) each.requires_grad_(false);
  pipeline->parameters()[0].requires_grad_();
  fault_ = {7, 3, true, INFINITY};
  EXPECT_EQ(error_of([&] { step(pipeline, "1f1b", true); }),
            "gpipe::NonFiniteError: a gradient is not finite: that of the "
            "input of partition 1 (1 of 6 elements are inf) (in partition 1, "
            "micro-batch 3, backward)");
}

TEST_F(CheckFinite, ChecksTheInputAndTheLoss) {
  auto pipeline = make(Checkpoint::kNever);
  target_[5][0] = INFINITY;
  for (const char* const schedule : {"1f1b", "zb-h1", "forward-only"}) {
    EXPECT_EQ(error_of([&] { step(pipeline, schedule, true); }),
              "gpipe::NonFiniteError: the loss is not finite: 1 of 1 element "
              "is inf (in partition 1, micro-batch 2, forward, layer 'loss')");
  }
  target_[5][0] = 0;
  input_[7][2] = std::nan("");
  EXPECT_EQ(error_of([&] { step(pipeline, "1f1b", true); }),
            "gpipe::NonFiniteError: the pipeline's input is not finite: 1 of 6 "
            "elements are nan (in partition 0, micro-batch 3, forward)");
}

struct ScaleImpl : nn::Module {
  Tensor forward(Tensor x) { return x * weight; }
  Tensor weight =
      register_parameter("weight", torch::zeros({kWidth}, torch::kDouble));
};
TORCH_MODULE(Scale);

// The gradient of each micro-batch is 1e308 if the input is not 0.
TEST_F(CheckFinite, NamesTheParameterWhoseSumAloneIsNot) {
  input_.fill_(0.5e308);
  input_.select(1, 1).zero_();
  for (const char* const schedule : kSchedules) {
    for (const bool in_order : {false, true}) {
      Scale scale;
      GPipe pipeline(nn::Sequential(scale, FaultyLayer(fault_, 1)),
                     options({1, 1}, kMicrobatches).threads_per_partition(1));
      const auto step = [&](bool check) {
        pipeline->train_step(
            input_, target_,
            [](Tensor output, Tensor) { return output.sum() * kMicrobatches; },
            named_schedule(schedule, 2, kMicrobatches, 1),
            TrainOptions().check_finite(check).fixed_sum_order(in_order));
      };
      EXPECT_EQ(error_of([&] { step(true); }),
                "gpipe::NonFiniteError: a gradient is not finite: that of "
                "parameter '0.weight' (2 of 3 elements are inf), in the sum "
                "over all micro-batches");
      EXPECT_EQ(pipeline->last_failure(), std::nullopt);
      for (const Tensor& each : pipeline->parameters()) {
        EXPECT_FALSE(each.grad().defined());
      }
      step(false);
      EXPECT_TRUE(std::isinf(scale->weight.grad()[0].item<double>()));
      input_.mul_(0.1);
      pipeline->zero_grad();
      step(true);
      EXPECT_NEAR(scale->weight.grad()[0].item<double>() / 1e307, 4, 1e-9);
      input_.mul_(10);
    }
  }
}

TEST_F(CheckFinite, IsOffByDefaultAndChangesNoBit) {
  auto pipeline = make(Checkpoint::kExceptLast);
  const Tensor loss = step(pipeline, "1f1b", false).loss;
  const auto grads = grads_of(*pipeline);
  pipeline->zero_grad();
  EXPECT_TRUE(step(pipeline, "1f1b", true).loss.equal(loss));
  EXPECT_EQ(testing::difference(grads_of(*pipeline), grads), "");
  EXPECT_FALSE(TrainOptions().check_finite());
  fault_ = {7, 2, false, std::nan("")};
  EXPECT_TRUE(std::isnan(step(pipeline, "1f1b", false).loss.item<double>()));
}

// Stashes log(x) and returns x.
struct StashImpl : nn::Module, Skippable {
  StashImpl() : Skippable({{"log"}, {}}) {}
  Tensor forward(Tensor x) {
    stash("log", x.log());
    return x;
  }
};
TORCH_MODULE(Stash);
struct PopImpl : nn::Module, Skippable {
  PopImpl() : Skippable({{}, {"log"}}) {}
  Tensor forward(Tensor x) { return x + *pop("log"); }
};
TORCH_MODULE(Pop);

TEST_F(CheckFinite, NamesTheLayerOfASkipTensor) {
  nn::Sequential model(FaultyLayer(fault_, 0), Stash(), FaultyLayer(fault_, 2),
                       Pop());
  GPipe pipeline(model, options({2, 2}, kMicrobatches));
  EXPECT_THAT(
      error_of([&] { step(pipeline, "1f1b", true); }),
      StartsWith("gpipe::NonFiniteError: the skip tensor 'log' of layer '1' "
                 "(gpipe::(anonymous namespace)::StashImpl) is not finite: "));
}

}  // namespace
}  // namespace gpipe
