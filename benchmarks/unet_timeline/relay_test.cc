#include "benchmarks/unet_timeline/relay.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "benchmarks/unet_timeline/skip_layers.h"
#include "gpipe/gpipe.h"
#include "gpipe/summary.h"

namespace gpipe::benchmarks {
namespace {

torch::nn::Sequential small_unet() {
  torch::manual_seed(0);
  return torch::nn::Sequential(Stash(), torch::nn::Linear(3, 3),
                               torch::nn::Linear(3, 3), Add(),
                               torch::nn::Linear(3, 3));
}

TEST(RelaySkips, TakesEachCrossingSkipThroughEveryPartitionBetween) {
  const Relayed relayed = relay_skips(small_unet(), {1, 1, 1, 2});
  EXPECT_EQ(relayed.balance, (std::vector<int64_t>{1, 3, 3, 2}));
  const auto described =
      summary(relayed.model, relayed.balance, at::zeros({4, 3}));
  // An activation and a skip tensor of 4 x 3 float32 cross each of the three
  // boundaries.
  ASSERT_EQ(described.crossings.size(), 6u);
  for (const CrossingSummary& crossing : described.crossings) {
    EXPECT_EQ(crossing.to, crossing.from + 1);
    EXPECT_EQ(crossing.bytes, 48);
  }
}

TEST(RelaySkips, LeavesAloneWhatCrossesOneBoundaryOrNone) {
  EXPECT_EQ(relay_skips(small_unet(), {2, 3}).balance,
            (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(relay_skips(small_unet(), {4, 1}).balance,
            (std::vector<int64_t>{4, 1}));
}

TEST(RelaySkips, ComputesTheSame) {
  const at::Tensor input = at::arange(12).reshape({4, 3}).to(at::kFloat);
  torch::nn::Sequential plain = small_unet();
  const at::Tensor expected = plain->forward(input);
  expected.sum().backward();

  const Relayed relayed = relay_skips(small_unet(), {1, 1, 1, 2});
  GPipe pipeline(relayed.model,
                 GPipeOptions(relayed.balance)
                     .devices(std::vector<torch::Device>(4, at::kCPU))
                     .chunks(2));
  const at::Tensor output = pipeline->forward(input);
  output.sum().backward();
  EXPECT_TRUE(at::allclose(output, expected));
  const auto ours = pipeline->parameters(), theirs = plain->parameters();
  ASSERT_EQ(ours.size(), theirs.size());
  for (std::size_t k = 0; k < ours.size(); ++k) {
    EXPECT_TRUE(at::allclose(ours[k].grad(), theirs[k].grad()));
  }
}

TEST(RelaySkips, RefusesABalanceOfOtherLayers) {
  EXPECT_THROW(relay_skips(small_unet(), {1, 1}), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::benchmarks
