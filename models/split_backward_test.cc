// Backwards of real models in two parts: ZB-H1 against 1F1B, which runs the
// same backwards in the same order.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/system_tests/options.h"
#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::models {
namespace {

using torch::Tensor;
using torch::nn::Sequential;

constexpr int kPartitions = 2, kMicrobatches = 3;

Tensor loss(const Tensor& output, const Tensor&) {
  return output.to(torch::kDouble).pow(2).mean();
}

// Returns the gradients and buffers after a step.
std::vector<Tensor> after_a_step(Sequential (*make)(), const Tensor& input,
                                 const Schedule& schedule) {
  torch::manual_seed(1);
  const Sequential model = make();
  const auto layers = static_cast<int64_t>(model->size());
  GPipe pipeline(model, testing::options({layers / 2, layers - layers / 2}, 1,
                                         Checkpoint::kNever)
                            .threads_per_partition(1));
  torch::manual_seed(2);
  const Tensor here = input.to(pipeline->devices().front());
  pipeline->train_step(here, here, loss, schedule);
  std::vector<Tensor> result;
  for (const Tensor& each : pipeline->parameters()) {
    EXPECT_TRUE(each.grad().defined());
    result.push_back(each.grad().cpu());
  }
  for (const Tensor& each : pipeline->buffers()) result.push_back(each.cpu());
  return result;
}

// Returns the largest difference relative to the largest value of each tensor;
// 0 for equal bits.
double largest_difference(Sequential (*make)(), const Tensor& input) {
  const auto whole = after_a_step(
      make, input, one_forward_one_backward(kPartitions, kMicrobatches));
  const auto parts =
      after_a_step(make, input, zero_bubble_h1(kPartitions, kMicrobatches));
  EXPECT_EQ(whole.size(), parts.size());
  double largest = 0;
  for (std::size_t k = 0; k < whole.size(); ++k) {
    if (whole[k].equal(parts[k])) continue;
    const double apart =
        ((whole[k] - parts[k]).abs().max() / whole[k].abs().max())
            .item<double>();
    EXPECT_FALSE(std::isnan(apart));
    largest = std::max(largest, apart);
  }
  return largest;
}

class SplitBackwardOfModels : public ::testing::Test {
 protected:
  SplitBackwardOfModels() {
    torch::set_num_threads(1);
    torch::manual_seed(0);
  }
};

TransformerOptions small_transformer() {
  return TransformerOptions()
      .num_layers(2)
      .width(16)
      .feed_forward(32)
      .heads(2)
      .vocabulary(11)
      .sequence(8);
}

TEST_F(SplitBackwardOfModels, ResNetHasEqualBits) {
  EXPECT_EQ(largest_difference([] { return resnet50(10); },
                               torch::randn({6, 3, 32, 32})),
            0);
}

TEST_F(SplitBackwardOfModels, AmoebaNetHasEqualBits) {
  EXPECT_EQ(largest_difference([] { return amoebanetd(10, 3, 16); },
                               torch::randn({3, 3, 64, 64})),
            0);
}

TEST_F(SplitBackwardOfModels, UNetHasEqualBits) {
  EXPECT_EQ(largest_difference([] { return unet(3, 2, 4); },
                               torch::randn({3, 3, 32, 32})),
            0);
}

TEST_F(SplitBackwardOfModels, TransformerHasEqualBits) {
  EXPECT_EQ(largest_difference([] { return transformer(small_transformer()); },
                               torch::randint(11, {6, 8}, torch::kLong)),
            0);
}

// The first partition uses the matrix twice: it looks up tokens, and sends the
// matrix to the last partition.
TEST_F(SplitBackwardOfModels, TiedTransformerHasEqualBits) {
  EXPECT_EQ(
      largest_difference(
          [] { return transformer(small_transformer().tied_embeddings(true)); },
          torch::randint(11, {6, 8}, torch::kLong)),
      0);
}

}  // namespace
}  // namespace gpipe::models
