#include "training/program/step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "training/program/task.h"
#include "training/program/weights.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

namespace nn = torch::nn;

// ---- Number formats

torch::nn::Sequential half_model() {
  return torch::nn::Sequential(torch::nn::Linear(3, 4),
                               torch::nn::BatchNorm1d(4));
}

TEST(PrecisionTest, Bfloat16IsForAllThatIsNoCounter) {
  auto converted = half_model();
  const at::Tensor weight = converted->parameters().front();
  precision_of("bfloat16").convert(converted);
  const StateDict dict = state_dict(*converted);
  for (const auto& item : dict) {
    const bool counts = item.key() == "1.num_batches_tracked";
    EXPECT_EQ(item.value().scalar_type(), counts ? at::kLong : at::kBFloat16)
        << item.key();
  }
  EXPECT_EQ(weight.scalar_type(), at::kBFloat16);  // the same tensor
  EXPECT_TRUE(weight.requires_grad());

  // A run in float32 can load these weights.
  const std::string path = gpipe::testing::new_folder() + "w.safetensors";
  write_safetensors(path, dict);
  auto other = half_model();
  ModelSource source("unet");  // torchvision has no names for it
  EXPECT_EQ(load_initial_weights(other, source, path, "").line,
            "7 of 7 tensors loaded from " + path);
}

// ---- Data

std::unique_ptr<Task> text_task(int64_t batch, int64_t bucket) {
  Options options = small_options("transformer");
  options.batch = batch;
  options.bucket = bucket;
  return make_task(options);
}

void expect_equal(const Sample& a, const Sample& b) {
  EXPECT_TRUE(a.input.equal(b.input));
  EXPECT_TRUE(a.target.equal(b.target));
}

TEST(StepDataTest, MiniBatchesAreOneLargeMiniBatchInAnyNumberOfReplicas) {
  const auto large = text_task(12, 0), small = text_task(4, 0);
  const StepData whole = load_step(*large, {.batch = 12}, 2);
  ASSERT_EQ(whole.parts.size(), 1u);
  EXPECT_FALSE(whole.split);
  EXPECT_EQ(whole.items, 12 * 12);
  for (const int64_t replicas : {1, 2, 3, 4}) {
    std::vector<at::Tensor> inputs, targets;
    for (int64_t replica = 0; replica < replicas; ++replica) {
      const StepData data = load_step(*small,
                                      {.batch = 4,
                                       .accumulate = 3,
                                       .replica = replica,
                                       .replicas = replicas},
                                      2);
      EXPECT_EQ(data.items, whole.items);
      ASSERT_EQ(data.parts.size(), 1u);
      inputs.push_back(data.parts[0].input);
      targets.push_back(data.parts[0].target);
      EXPECT_EQ(inputs.back().size(0), 12 / replicas);
    }
    expect_equal({at::cat(inputs), at::cat(targets)}, whole.parts[0]);
  }
}

TEST(StepDataTest, PartsDoNotDependOnTheReplicasWhichTakeThemInTurn) {
  const auto large = text_task(12, 4), small = text_task(4, 4);
  const StepData whole = load_step(*large, {.batch = 12, .microbatches = 6}, 2);
  ASSERT_EQ(whole.parts.size(), 6u);
  EXPECT_TRUE(whole.split);
  for (const int64_t replicas : {1, 2, 3}) {
    for (int64_t replica = 0; replica < replicas; ++replica) {
      const StepData data = load_step(*small,
                                      {.batch = 4,
                                       .accumulate = 3,
                                       .replica = replica,
                                       .replicas = replicas,
                                       .microbatches = 6 / replicas},
                                      2);
      EXPECT_EQ(data.items, whole.items);
      ASSERT_EQ(static_cast<int64_t>(data.parts.size()), 6 / replicas);
      for (std::size_t k = 0; k < data.parts.size(); ++k) {
        expect_equal(data.parts[k], whole.parts[k * replicas + replica]);
      }
    }
  }
}

// ---- Optimizers

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

// A step whose gradients are 0 changes a parameter only by its weight decay.
TEST(OptimizerTest, NoOptimizerDecaysBiasesAndNorms) {
  for (const char* name : {"sgd", "adam", "adamw", "rmsprop", "adagrad"}) {
    for (const bool decays : {false, true}) {
      const auto of = model();
      Options options;
      options.optimizer = name;
      options.weight_decay = 0.1;
      options.decay_norms = decays;
      const auto parameters = of->parameters();
      const auto optimizer = make_optimizer(options, parameters);
      std::vector<at::Tensor> before;
      for (const at::Tensor& each : parameters) {
        const torch::NoGradGuard no_grad;
        each.fill_(1);
        before.push_back(each.clone());
        each.mutable_grad() = at::zeros_like(each);
      }
      optimizer->step();
      for (std::size_t k = 0; k < before.size(); ++k) {
        EXPECT_EQ(parameters[k].equal(before[k]),
                  !decays && parameters[k].dim() == 1)
            << name << " " << k;
      }
    }
  }
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
