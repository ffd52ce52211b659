// Tests what the label //gpipe brings: this test has no other dep of gpipe.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"

namespace {

// "Less waiting" of docs/quick_start.md.
TEST(Label, BringsTheSchedulesOfTrainStep) {
  torch::nn::Sequential layers(torch::nn::Linear(4, 4),
                               torch::nn::Linear(4, 4));
  gpipe::GPipe pipeline(layers, gpipe::GPipeOptions({1, 1}).chunks(8));
  const auto result = pipeline->train_step(
      torch::ones({32, 4}), torch::zeros({32, 4}),
      [](torch::Tensor output, torch::Tensor target) {
        return torch::nn::functional::mse_loss(output, target);
      },
      gpipe::one_forward_one_backward(/*stages=*/2, /*microbatches=*/8));
  EXPECT_EQ(result.losses.size(), 8u);
}

}  // namespace
