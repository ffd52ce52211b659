#include "training/autocast.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

namespace gpipe {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

at::ScalarType type_of_product() {
  return torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type();
}

TEST(AutocastScopeTest, HoldsInItsScopeAndNests) {
  EXPECT_EQ(type_of_product(), torch::kFloat);
  {
    const AutocastScope outer(torch::kCPU, torch::kBFloat16);
    EXPECT_EQ(type_of_product(), torch::kBFloat16);
    {
      const AutocastScope inner(torch::kCPU, torch::kHalf);
      EXPECT_EQ(type_of_product(), torch::kHalf);
      const AutocastScope off(torch::kCPU, torch::kHalf, /*enabled=*/false);
      EXPECT_EQ(type_of_product(), torch::kFloat);
    }
    EXPECT_EQ(type_of_product(), torch::kBFloat16);
  }
  EXPECT_EQ(type_of_product(), torch::kFloat);
}

TEST(AutocastScopeTest, RefusesOtherDtypes) {
  for (const auto dtype :
       {torch::kInt, torch::kFloat, torch::kDouble, torch::kFloat8_e4m3fn}) {
    EXPECT_THROW(AutocastScope(torch::kCPU, dtype), c10::ValueError);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU));
}

nn::Sequential model() {
  torch::manual_seed(2);
  return nn::Sequential(nn::Linear(6, 8), nn::ReLU(), nn::Linear(8, 8),
                        nn::ReLU(), nn::Linear(8, 4));
}

// Compares a step in bfloat16 with plain LibTorch: one autocast scope per
// micro-batch, whose gradients are added up.
TEST(AutocastScopeTest, AStepOfThePipelineHasTheBitsOfPlainAutocast) {
  const Tensor input = torch::randn({8, 6}), target = torch::randn({8, 4});
  const auto loss = [](const Tensor& output, const Tensor& target) {
    return (output.to(torch::kFloat) - target).pow(2).mean();
  };
  for (const Checkpoint mode : {Checkpoint::kAlways, Checkpoint::kNever}) {
    nn::Sequential plain = model();
    std::vector<Tensor> grads;
    for (int k = 0; k < 4; ++k) {
      Tensor piece;
      {
        const AutocastScope autocast(torch::kCPU, torch::kBFloat16);
        piece = loss(plain->forward(input.narrow(0, 2 * k, 2)),
                     target.narrow(0, 2 * k, 2));
      }
      // One backward per micro-batch, in the pipeline's order of summation.
      plain->zero_grad();
      (piece * 0.25).backward();
      std::size_t n = 0;
      for (const Tensor& each : plain->parameters()) {
        if (k == 0) {
          grads.push_back(each.grad().clone());
        } else {
          grads[n] += each.grad();
        }
        ++n;
      }
    }

    GPipe pipeline(model(), GPipeOptions({2, 3})
                                .devices({torch::kCPU, torch::kCPU})
                                .checkpoint(mode)
                                .threads_per_partition(1));
    {
      const AutocastScope autocast(torch::kCPU, torch::kBFloat16);
      pipeline->train_step(input, target, loss, one_forward_one_backward(2, 4));
    }
    std::size_t n = 0;
    for (const auto& each : pipeline->named_parameters()) {
      EXPECT_EQ(each.value().grad().scalar_type(), torch::kFloat);
      EXPECT_TRUE(each.value().grad().equal(grads[n++])) << each.key();
    }
  }
}

}  // namespace
}  // namespace gpipe
