#include "balancing/profile/sandbox.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <memory>

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

// The inherited clone() makes a Linear.
struct DerivedImpl : LinearImpl {
  DerivedImpl() : LinearImpl(1, 1) {}
  torch::Tensor forward(torch::Tensor x) { return LinearImpl::forward(x) + 1; }
};
TORCH_MODULE(Derived);

TEST(SandboxTest, CopiesALayerInTrainingMode) {
  Linear linear(2, 3);
  linear->eval();
  Sandbox sandbox{AnyModule(linear)};
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
    Sandbox sandbox{AnyModule(layer)};
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
