// Adapters of layers that are written in C++.
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>
#include <string>

#include "gpipe/gpipe.h"
#include "gpipe/placement.h"
#include "gpipe/schedule.h"
#include "gpipe/sequential.h"
#include "models/lora.h"
#include "models/testing/files.h"

namespace gpipe {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using testing::error_of;
using testing::value_error_of;
using torch::nn::Sequential;

// A layer that holds its modules as typed members.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("up", up);
    register_module("down", down);
  }
  Tensor forward(const Tensor& x) { return x + down(at::tanh(up(x))); }
  torch::nn::Linear up{4, 6}, down{6, 4};
};
TORCH_MODULE(Block);

// A layer that calls a module which other layers may call as well.
struct CallerImpl : torch::nn::Module {
  explicit CallerImpl(Block block) : block(register_module("block", block)) {}
  Tensor forward(const Tensor& x) { return block(x); }
  Block block;
};
TORCH_MODULE(Caller);

Sequential make_model() {
  torch::manual_seed(1);
  return Sequential(Block(), Block(), torch::nn::Linear(4, 3));
}

LoraOptions options() {
  return LoraOptions().rank(2).alpha(6).targets({"up", "2"});
}

// Gives B values other than 0.
void fill(const torch::nn::Module& model) {
  torch::manual_seed(3);
  for (const auto& each : lora_state_dict(model)) {
    if (each.key().find("lora_B") != std::string::npos) {
      at::Tensor(each.value()).normal_();
    }
  }
}

Tensor input() {
  torch::manual_seed(2);
  return at::randn({6, 4});
}

// Returns the output of model 0.up with the formula.
Tensor expected_up(BlockImpl& block, const StateDict& lora, const Tensor& x,
                   double scale) {
  const Tensor& a = lora["base_model.model.0.up.lora_A.weight"];
  const Tensor& b = lora["base_model.model.0.up.lora_B.weight"];
  return at::addmm(block.up->bias, x, block.up->weight.t()) +
         at::linear(at::linear(x, a), b) * scale;
}

TEST(LoraModules, ATypedMemberIsReached) {
  torch::manual_seed(1);
  Block block;
  Sequential model = add_lora(Sequential(block), options().targets({"up"}));
  fill(*model);
  const StateDict lora = lora_state_dict(*model);
  ASSERT_EQ(lora.size(), 2u);
  // A product that the hook does not reach: the weight as a plain tensor.
  Block plain;
  plain->up->weight.set_data(block->up->weight.clone());
  plain->up->bias.set_data(block->up->bias.clone());
  const Tensor x = input();
  EXPECT_TRUE(block->up(x).equal(expected_up(*plain, lora, x, 3)));
  EXPECT_TRUE(model->forward(x).equal(
      x + block->down(at::tanh(expected_up(*plain, lora, x, 3)))));
  // Also for more dimensions, where LibTorch's function uses matmul().
  const Tensor batches = x.view({2, 3, 4});
  EXPECT_TRUE(block->up(batches).allclose(
      expected_up(*plain, lora, x, 3).view({2, 3, 6}), 1e-4, 1e-5));
}

TEST(LoraModules, GradientsReachAdaptersOnly) {
  Sequential model = add_lora(make_model(), options());
  fill(*model);
  model->forward(input()).sum().backward();
  std::size_t trained = 0;
  for (const auto& each : model->named_parameters()) {
    const bool is_adapter = each.key().find(".lora.") != std::string::npos;
    EXPECT_EQ(each.value().requires_grad(), is_adapter) << each.key();
    EXPECT_EQ(each.value().grad().defined(), is_adapter) << each.key();
    trained += is_adapter;
  }
  EXPECT_EQ(trained, 6u);
}

TEST(LoraModules, MergeGivesTheSameOutputsWithoutAdapters) {
  Sequential model = add_lora(make_model(), options());
  fill(*model);
  const Tensor before = model->forward(input());
  merge_lora(*model);
  EXPECT_TRUE(lora_state_dict(*model).is_empty());
  EXPECT_TRUE(model->forward(input()).allclose(before, 1e-5, 1e-6));
  EXPECT_FALSE(model->forward(input()).equal(make_model()->forward(input())));
  // The modules can get adapters again.
  add_lora(model, options());
  EXPECT_EQ(lora_state_dict(*model).size(), 6u);
}

// Computes half of a linear layer.
struct HalfImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    return at::addmm(up->bias, x, up->weight.t(), /*beta=*/1, /*alpha=*/0.5);
  }
  torch::nn::Linear up = register_module("up", torch::nn::Linear(4, 6));
};
TORCH_MODULE(Half);

TEST(LoraModules, AnAdapterIsMultipliedByTheFactorOfAddmm) {
  Sequential model = add_lora(Sequential(Half()), options().targets({"up"}));
  fill(*model);
  const Tensor before = model->forward(input());
  merge_lora(*model);
  EXPECT_TRUE(model->forward(input()).allclose(before, 1e-5, 1e-6));
}

TEST(LoraModules, ALinearThatIsCalledTwiceHasOneAdapterAndIsMergedOnce) {
  torch::manual_seed(1);
  const Block shared;
  Sequential model{Caller(shared), Caller(shared)};
  add_lora(model, options().targets({"up"}));
  fill(*model);
  EXPECT_EQ(lora_state_dict(*model).size(), 2u);
  const Tensor before = model->forward(input());
  merge_lora(*model);
  EXPECT_TRUE(lora_state_dict(*model).is_empty());
  EXPECT_TRUE(model->forward(input()).allclose(before, 1e-5, 1e-6));
}

TEST(LoraModules, ConversionKeepsAdapters) {
  Sequential model = add_lora(make_model(), options());
  fill(*model);
  const Tensor before = model->forward(input());
  model->to(at::kDouble);
  EXPECT_TRUE(model->forward(input().to(at::kDouble))
                  .allclose(before.to(at::kDouble), 1e-5, 1e-6));
  Sequential plain = make_model();
  plain->to(at::kDouble);
  EXPECT_FALSE(model->forward(input().to(at::kDouble))
                   .allclose(plain->forward(input().to(at::kDouble))));
  EXPECT_NE(error_of([&] { model[2]->clone(); }).find("same number of child"),
            std::string::npos);
}

TEST(LoraModules, PipelinesHaveTheGradientsOfTheSequential) {
  const auto gradients = [](std::vector<int64_t> balance,
                            const Schedule& schedule, Checkpoint checkpoint) {
    Sequential model = add_lora(make_model(), options().dropout(0.5));
    fill(*model);
    GPipe pipeline(model, GPipeOptions(balance)
                              .devices({at::kCPU, at::kCPU})
                              .checkpoint(checkpoint)
                              .threads_per_partition(1));
    torch::manual_seed(4);
    pipeline->train_step(
        input(), input(),
        [](const Tensor& output, const Tensor&) {
          return output.pow(2).mean();
        },
        schedule);
    std::vector<Tensor> found;
    for (const auto& each : pipeline->parameters()) {
      if (each.requires_grad()) found.push_back(each.grad());
    }
    return found;
  };
  const auto expected =
      gradients({3}, one_forward_one_backward(1, 3), Checkpoint::kNever);
  ASSERT_EQ(expected.size(), 6u);
  for (const auto& balance : {std::vector<int64_t>{1, 2}, {2, 1}}) {
    for (const auto checkpoint : {Checkpoint::kNever, Checkpoint::kAlways}) {
      for (const Schedule& schedule :
           {fill_drain(2, 3), one_forward_one_backward(2, 3),
            zero_bubble_h1(2, 3)}) {
        const auto found = gradients(balance, schedule, checkpoint);
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t k = 0; k < found.size(); ++k) {
          EXPECT_TRUE(found[k].allclose(expected[k], 1e-5, 1e-7)) << k;
        }
      }
    }
  }
}

// stack() names layers anew, as a pipeline names those of a builder.
TEST(LoraModules, NamesInFilesFollowTheLayers) {
  const auto part = [] {
    return add_lora(Sequential(torch::nn::Linear(4, 4)),
                    LoraOptions().rank(2).targets({"0"}));
  };
  Sequential both = stack({{"enc", part()}, {"dec", part()}});
  EXPECT_THAT(lora_state_dict(*both).keys(),
              ElementsAre("base_model.model.enc_0.lora_A.weight",
                          "base_model.model.enc_0.lora_B.weight",
                          "base_model.model.dec_0.lora_A.weight",
                          "base_model.model.dec_0.lora_B.weight"));
  // A part, and a module around the model, have the names of the model.
  const auto names = [](const torch::nn::Module& module) {
    return lora_state_dict(module).keys();
  };
  Sequential model = add_lora(make_model(), options());
  EXPECT_EQ(names(*model).size(), 6u);
  const auto around = std::make_shared<torch::nn::Module>();
  around->register_module("net", model);
  EXPECT_EQ(names(*around), names(*model));
  EXPECT_EQ(names(*model[0]).at(0), "base_model.model.0.up.lora_A.weight");
}

TEST(LoraModules, FilesOfFlatAndStackedLayersAreWrittenAndRead) {
  const auto part = [] {
    Nested nested;
    nested->push_back("fc", torch::nn::Linear(4, 4));
    return add_lora(Sequential(nested), LoraOptions().rank(2).targets({"fc"}));
  };
  const auto options = LoraOptions().rank(2).targets({"fc"});
  const std::string folder = testing::new_folder();
  Sequential flat = flatten(part());
  save_lora(folder + "flat", *flat, options);
  EXPECT_THAT(lora_state_dict(*flat).keys(),
              ElementsAre("base_model.model.0.fc.lora_A.weight",
                          "base_model.model.0.fc.lora_B.weight"));
  load_lora(folder + "flat", *part());

  Sequential both = stack({{"enc", flatten(part())}, {"dec", part()}});
  save_lora(folder + "stack", *both, options);
  load_lora(folder + "stack", *both);
  EXPECT_EQ(lora_state_dict(*both).size(), 4u);
}

TEST(LoraModules, APlacedModuleIsRefusedAndSoIsPlacingAdapters) {
  Sequential model = make_model();
  parallelize_module(model[2], "cpu");
  EXPECT_NE(value_error_of([&] {
              add_lora(model, options());
            }).find("the module '2' cannot have an adapter"),
            std::string::npos);
  for (const Tensor& each : model->parameters()) {
    EXPECT_TRUE(each.requires_grad());
  }
  unparallelize_module(model[2]);
  add_lora(model, options());
  for (int k = 0; k < 2; ++k) {  // the second time as the first
    EXPECT_NE(error_of([&] {
                parallelize_pipeline(model, {{"1", "cpu"}, {"2", "cpu"}});
              }).find("it has an adapter (call merge_lora() first)"),
              std::string::npos);
  }
}

TEST(LoraModules, AdaptersOfOneNameAreRefused) {
  const auto part = [] {
    return add_lora(Sequential(Block()), options().targets({"up"}));
  };
  const auto around = std::make_shared<torch::nn::Module>();
  around->register_module("encoder", part());
  around->register_module("decoder", part());
  EXPECT_EQ(value_error_of([&] { lora_state_dict(*around); }),
            "two adapters have the name '0.up' in files; call add_lora() once, "
            "on the whole model, or give layers names of their own");
}

TEST(LoraModules, AModelWithoutLinearModulesIsRefused) {
  EXPECT_EQ(value_error_of([] {
              add_lora(torch::nn::Sequential(torch::nn::ReLU()),
                       LoraOptions().targets({"linear"}));
            }),
            "the model has no linear module, which could get an adapter");
}

TEST(LoraModules, SharedWeightsAndOtherModulesAreRefused) {
  Sequential model(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4),
                   torch::nn::Tanh());
  auto& second = *model[1]->as<torch::nn::Linear>();
  second.weight = model[0]->as<torch::nn::Linear>()->weight;
  EXPECT_EQ(value_error_of([&] {
              add_lora(model, LoraOptions().targets({"0", "1"}));
            }),
            "the weight of the module '0', which a target names, is also that "
            "of '1', which would get the adapter, too; leave it out of the "
            "targets");
  EXPECT_EQ(
      value_error_of([&] { add_lora(model, LoraOptions().targets({"1"})); }),
      "the weight of the module '1', which a target names, is also that of "
      "'0', which would get the adapter, too; leave it out of the targets");
  EXPECT_EQ(
      value_error_of([&] { add_lora(model, LoraOptions().targets({"2"})); }),
      "the module '2', which a target names, is no torch::nn::Linear");
  EXPECT_TRUE(lora_state_dict(*model).is_empty());
  EXPECT_TRUE(second.weight.requires_grad());
}

}  // namespace
}  // namespace gpipe
