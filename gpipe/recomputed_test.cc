#include "gpipe/recomputed.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/dropout.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/skip.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::device;
using testing::error_of;
using torch::Tensor;
using torch::nn::Sequential;
namespace F = torch::nn::functional;

// A layer with a submodule, a parameter and a buffer that each forward reads
// and changes.
struct BlockImpl : torch::nn::Cloneable<BlockImpl> {
  explicit BlockImpl(int64_t width) : width(width) { reset(); }
  void reset() override {
    linear = register_module("linear", torch::nn::Linear(width, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    scale = register_parameter("scale", torch::ones({width}));
    seen = register_buffer("seen", torch::ones({width}));
  }
  Tensor forward(const Tensor& x) {
    ++calls;
    const Tensor h = norm(linear(x)).tanh() * scale * seen.clone();
    {
      const torch::NoGradGuard no_grad;
      if (is_training()) seen.mul_(1.5);
    }
    return x + F::dropout(h, F::DropoutFuncOptions().p(0.25));
  }
  int64_t width;
  int calls = 0;
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Tensor scale, seen;
};
TORCH_MODULE(Block);

// Takes a vector and returns a tuple.
struct PairImpl : torch::nn::Module {
  std::tuple<Tensor, Tensor> forward(std::vector<Tensor> x) {
    return {x[0].exp() * weight, x[1]};
  }
  Tensor weight = register_parameter("weight", torch::full({1}, 2.0));
};
TORCH_MODULE(Pair);

struct StashImpl : torch::nn::Module, Skippable {
  StashImpl() : Skippable({{"skip"}, {}}) {}
  Tensor forward(Tensor x) {
    const Tensor y = x.sin().exp();
    stash("skip", y);
    return y.cos();
  }
};
TORCH_MODULE(Stash);

struct PopImpl : torch::nn::Module, Skippable {
  PopImpl() : Skippable({{}, {"skip"}}) {}
  Tensor forward(Tensor x) { return (x * *pop("skip")).exp(); }
};
TORCH_MODULE(Pop);

std::vector<std::string> names(const torch::nn::Module& module) {
  std::vector<std::string> result = module.named_parameters().keys();
  for (const std::string& each : module.named_buffers().keys()) {
    result.push_back(each);
  }
  return result;
}

std::vector<Tensor> results(Sequential model, const Tensor& output,
                            const Tensor& input) {
  std::vector<Tensor> all = {output.detach(), input.grad()};
  for (const auto& each : model->parameters()) all.push_back(each.grad());
  for (const auto& each : model->buffers()) all.push_back(each);
  return all;
}

TEST(Recomputed, HasTheNamesTheParametersAndTheBitsOfTheLayer) {
  std::vector<std::vector<Tensor>> all;
  std::vector<std::vector<std::string>> all_names;
  for (const bool recomputed : {false, true}) {
    torch::manual_seed(1);
    const Block first(4), second(4);
    Sequential model;
    if (recomputed) {
      const Recomputed wrapped(first);
      EXPECT_TRUE(wrapped->scale.is_same(first->scale));
      model->push_back(wrapped);
      model->push_back(Recomputed(second.ptr()));
    } else {
      model->push_back(first);
      model->push_back(second);
    }
    model->to(device(), torch::kDouble);
    const Tensor x =
        torch::randn({6, 4}, torch::kDouble).to(device()).requires_grad_();
    // Two calls change the buffers before the first backward.
    const Tensor y = model->forward(model->forward(x));
    y.sum().backward();
    all.push_back(results(model, y, x));
    all_names.push_back(names(*model));
  }
  EXPECT_EQ(all_names[0], all_names[1]);
  EXPECT_EQ(all_names[1].front(), "0.scale");
  EXPECT_EQ(testing::difference(all[0], all[1]), "");
}

// LibTorch passes undefined tensors as the statistics of such a norm.
TEST(Recomputed, TakesNormsWithoutRunningStatistics) {
  const auto model_of = [](bool recomputed) {
    torch::manual_seed(1);
    const torch::nn::InstanceNorm1d instance(4);
    const torch::nn::InstanceNorm1d tracking(
        torch::nn::InstanceNormOptions(4).track_running_stats(true).affine(
            true));
    const torch::nn::BatchNorm1d batch(
        torch::nn::BatchNormOptions(4).track_running_stats(false));
    return recomputed ? Sequential(Recomputed(instance), Recomputed(tracking),
                                   Recomputed(batch))
                      : Sequential(instance, tracking, batch);
  };
  for (const bool training : {true, false}) {
    std::vector<std::vector<Tensor>> all;
    for (const bool recomputed : {false, true}) {
      Sequential model = model_of(recomputed);
      model->to(device(), torch::kDouble);
      model->train(training);
      const Tensor x =
          torch::randn({3, 4, 5}, torch::kDouble).to(device()).requires_grad_();
      const Tensor y = model->forward(x);
      y.square().sum().backward();
      all.push_back(results(model, y, x));
    }
    EXPECT_EQ(testing::difference(all[0], all[1]), "");
  }
}

TEST(Recomputed, CallsTheLayerAgainInBackward) {
  Recomputed block(Block(4));
  const Tensor y = block->forward(torch::randn({6, 4}));
  EXPECT_EQ(block->calls, 1);
  y.sum().backward();
  EXPECT_EQ(block->calls, 2);
}

TEST(Recomputed, ChainsVectorsAndTuplesByTheirTypes) {
  torch::nn::AnyModule layer{Recomputed(Pair())};
  const Tensor x = torch::ones({2}).requires_grad_();
  const auto [a, b] = layer.forward<std::tuple<Tensor, Tensor>>(
      std::vector<Tensor>{x, torch::arange(2)});
  EXPECT_EQ(b.scalar_type(), torch::kLong);
  a.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp() * 2));
}

TEST(Recomputed, TakesASequential) {
  Sequential model(
      Recomputed(Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4))),
      torch::nn::Linear(4, 1));
  EXPECT_EQ(model->named_parameters().keys()[0], "0.0.weight");
  model->forward(torch::ones({2, 4})).sum().backward();
  for (const auto& each : model->parameters())
    EXPECT_TRUE(each.grad().defined());
}

// Dropout returns an input without rows itself, on which ReLU works in place.
TEST(Recomputed, WorksInPlaceOnAnInputWithoutRows) {
  for (const bool requires_grad : {false, true}) {
    torch::nn::Linear first(4, 4), last(4, 2);
    first->weight.requires_grad_(requires_grad);
    first->bias.requires_grad_(requires_grad);
    Recomputed layers(Sequential(
        torch::nn::Dropout(0.5),
        torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)), last));
    const Tensor y = layers->forward(first(torch::ones({0, 4})));
    y.sum().backward();
    EXPECT_EQ(first->weight.grad().defined(), requires_grad);
    EXPECT_TRUE(last->weight.grad().equal(torch::zeros({2, 4})));
  }
}

TEST(Recomputed, StashesAndPopsOnce) {
  std::vector<Tensor> grads;
  for (const bool recomputed : {false, true}) {
    const Tensor x = torch::linspace(0, 1, 6).view({6, 1}).requires_grad_();
    Sequential model;
    if (recomputed) {
      model->push_back(Recomputed(Stash()));
      model->push_back(Recomputed(Pop()));
    } else {
      model->push_back(Stash());
      model->push_back(Pop());
    }
    verify_skippables(model);
    model->forward(x).sum().backward();
    grads.push_back(x.grad());
  }
  EXPECT_TRUE(torch::equal(grads[0], grads[1]));
}

TEST(Recomputed, IsPrintedAndCloned) {
  Sequential model(Recomputed(torch::nn::Linear(4, 2)));
  std::ostringstream text;
  text << *model;
  EXPECT_NE(text.str().find("(0): Recomputed(torch::nn::Linear(in_features=4, "
                            "out_features=2, bias=true))"),
            std::string::npos)
      << text.str();
  const auto copy =
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  const auto layer =
      std::dynamic_pointer_cast<RecomputedImpl<torch::nn::LinearImpl>>(
          copy->ptr(0));
  ASSERT_TRUE(layer);
  EXPECT_FALSE(layer->weight.is_same(model->parameters()[0]));
  EXPECT_TRUE(torch::equal(layer->weight, model->parameters()[0]));
}

TEST(Recomputed, NamesWhatHasChangedSinceTheForward) {
  const auto error = [](std::function<void(Recomputed<Block>&)> change) {
    Recomputed block{Block(4)};
    const Tensor y = block->forward(torch::randn({6, 4}));
    {
      const torch::NoGradGuard no_grad;
      change(block);
    }
    return error_of([&] { y.sum().backward(); });
  };
  EXPECT_EQ(error([](auto& block) {
              block->linear->bias.add_(1);
            }).find("c10::Error: parameter 'linear.bias' ([4] Float) of "),
            0u);
  EXPECT_EQ(error([](auto& block) {
              block->eval();
            }).find("c10::Error: train() or eval() was called between"),
            0u);
  EXPECT_EQ(error([](auto&) {}), "");
  // This buffer is changed by each forward, so its value is kept.
  EXPECT_EQ(error([](auto& block) { block->seen.add_(1); }), "");
  EXPECT_EQ(error_of([] { Recomputed(torch::nn::Linear(nullptr)); }),
            "c10::ValueError: Recomputed() got a null layer");
}

}  // namespace
}  // namespace gpipe
