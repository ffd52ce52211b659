#include "balancing/profile/sandbox.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstddef>
#include <vector>

namespace gpipe::balancing {
namespace {

using torch::nn::AnyModule;
using torch::nn::Linear;
using torch::nn::LinearImpl;

// A layer without a clone() of its own.
struct UncloneableImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    count += 1;
    sparse.mul_(2);
    return x;
  }
  Linear inner = register_module("inner", Linear(1, 1));
  torch::Tensor count = register_buffer("count", torch::zeros({}));
  torch::Tensor expanded =
      register_buffer("expanded", torch::arange(3).expand({2, 3}));
  torch::Tensor sparse = register_buffer("sparse", torch::eye(3).to_sparse());
};
TORCH_MODULE(Uncloneable);

// A layer without a clone() of its own, whose forward replaces or changes all
// that is registered with it, and registers more.
struct RewritingImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    const torch::NoGradGuard no_grad;
    eval();
    mask = torch::ones({2});
    resized.resize_({4}).fill_(5);
    reset.set_data(torch::ones({2, 2}));
    clamped.set_data(clamped.clamp(-1, 1));
    register_buffer("late", x);
    return x;
  }
  torch::Tensor resized = register_buffer("resized", torch::ones({1}));
  torch::Tensor reset = register_buffer("reset", torch::zeros({0}));
  torch::Tensor clamped = register_parameter("clamped", torch::full({3}, 3.f));
  // The last one, since a later registration moves the entries.
  torch::Tensor& mask = register_buffer("mask", torch::zeros({0}));
};
TORCH_MODULE(Rewriting);

// The inherited clone() makes a Linear.
struct DerivedImpl : LinearImpl {
  DerivedImpl() : LinearImpl(1, 1) {}
  torch::Tensor forward(torch::Tensor x) { return LinearImpl::forward(x) + 1; }
};
TORCH_MODULE(Derived);

TEST(SandboxTest, CopiesALayerInTrainingMode) {
  Linear linear(2, 3);
  linear->eval();
  auto sandboxes = sandboxes_of(torch::nn::Sequential(linear));
  Sandbox& sandbox = sandboxes[0];
  const auto copy = sandbox.layer().ptr();
  EXPECT_TRUE(sandbox.is_copy());
  EXPECT_NE(copy, linear.ptr());
  EXPECT_TRUE(copy->is_training());
  EXPECT_FALSE(linear->is_training());
  EXPECT_TRUE(copy->parameters()[0].equal(linear->weight));
  EXPECT_NE(copy->parameters()[0].data_ptr(), linear->weight.data_ptr());
}

TEST(SandboxTest, KeepsFrozenParametersFrozen) {
  Linear linear(2, 3);
  linear->weight.set_requires_grad(false);
  Sandbox sandbox{AnyModule(linear)};
  const auto copies = sandbox.layer().ptr()->named_parameters();
  EXPECT_FALSE(copies["weight"].requires_grad());
  EXPECT_TRUE(copies["bias"].requires_grad());
}

TEST(SandboxTest, LendsALayerThatCannotBeCopied) {
  Uncloneable layer;
  layer->eval();
  layer->inner->train();
  {
    auto sandboxes = sandboxes_of(torch::nn::Sequential(layer));
    Sandbox& sandbox = sandboxes[0];
    EXPECT_FALSE(sandbox.is_copy());
    EXPECT_EQ(sandbox.layer().ptr(), layer.ptr());
    EXPECT_TRUE(layer->is_training());
    layer->forward(torch::ones({1}));
    EXPECT_EQ(layer->count.item<float>(), 1);
  }
  EXPECT_FALSE(layer->is_training());
  EXPECT_TRUE(layer->inner->is_training());
  EXPECT_EQ(layer->count.item<float>(), 0);
  EXPECT_TRUE(layer->expanded.equal(torch::arange(3).expand({2, 3})));
  EXPECT_TRUE(layer->sparse.to_dense().equal(torch::eye(3)));
}

TEST(SandboxTest, RestoresTheModeOfASubmoduleThatLayersShare) {
  Uncloneable first, second;
  second->inner = second->replace_module("inner", first->inner);
  first->eval();
  second->eval();
  {
    const auto sandboxes =
        sandboxes_of(torch::nn::Sequential(first, second, first));
    EXPECT_TRUE(first->is_training());
    EXPECT_TRUE(first->inner->is_training());
  }
  EXPECT_FALSE(first->is_training());
  EXPECT_FALSE(second->is_training());
  EXPECT_FALSE(first->inner->is_training());
}

TEST(SandboxTest, RestoresWhatIsRegisteredWithALentLayer) {
  Rewriting layer;
  const auto buffers = layer->named_buffers();
  const auto parameters = layer->named_parameters();
  std::vector<const void*> memory;
  for (const auto& each : parameters) memory.push_back(each->data_ptr());
  {
    Sandbox sandbox{AnyModule(layer)};
    layer->forward(torch::ones({1}));
  }
  EXPECT_TRUE(layer->is_training());
  const auto buffers_after = layer->named_buffers();
  for (const auto& each : buffers) {
    EXPECT_TRUE(buffers_after[each.key()].is_same(each.value())) << each.key();
  }
  EXPECT_TRUE(buffers["mask"].equal(torch::zeros({0})));
  EXPECT_TRUE(buffers["resized"].equal(torch::ones({1})));
  EXPECT_TRUE(buffers["reset"].equal(torch::zeros({0})));
  EXPECT_TRUE(buffers_after.contains("late"));
  EXPECT_EQ(layer->named_parameters().size(), 1u);
  for (std::size_t k = 0; k < memory.size(); ++k) {
    const torch::Tensor parameter = layer->parameters()[k];
    EXPECT_TRUE(parameter.is_same(parameters[k].value()));
    EXPECT_EQ(parameter.data_ptr(), memory[k]);
    EXPECT_TRUE(parameter.equal(torch::full({3}, 3.f)));
  }
}

// On the meta device a forward writes no values.
TEST(SandboxTest, LeavesValuesIfTold) {
  Uncloneable layer;
  {
    Sandbox sandbox{AnyModule(layer), /*values=*/false};
    layer->forward(torch::ones({1}));
  }
  EXPECT_EQ(layer->count.item<float>(), 1);
}

TEST(SandboxTest, LendsALayerWhoseCloneIsOfItsBaseClass) {
  Derived layer;
  Sandbox sandbox{AnyModule(layer)};
  EXPECT_FALSE(sandbox.is_copy());
}

TEST(VisitTest, LeavesTensorsThatAreThere) {
  torch::nn::BatchNorm1d norm(2);
  const void* weight = norm->weight.data_ptr();
  const void* mean = norm->running_mean.data_ptr();
  {
    const Visit stay(*norm, torch::kCPU);
    EXPECT_EQ(norm->weight.data_ptr(), weight);
  }
  EXPECT_EQ(norm->weight.data_ptr(), weight);
  EXPECT_EQ(norm->running_mean.data_ptr(), mean);
}

}  // namespace
}  // namespace gpipe::balancing
