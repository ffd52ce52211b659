#include "benchmarks/relay.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include "balancing/profile/testing.h"
#include "gpipe/gpipe.h"
#include "gpipe/summary.h"
#include "gpipe/testing/layers.h"

namespace gpipe::benchmarks {
namespace {

using gpipe::testing::Add;
using gpipe::testing::Keep;
using ::testing::ElementsAre;

torch::nn::Sequential small_unet() {
  torch::manual_seed(0);
  return torch::nn::Sequential(Keep(), torch::nn::Linear(3, 3),
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

// Returns a model with 3 numbers per row in each activation.
torch::nn::Sequential model() {
  torch::nn::Sequential model;
  model->push_back("first", Keep());
  model->push_back("second", torch::nn::Linear(3, 3));
  model->push_back("third", Add());
  return model;
}

balancing::Profile profile() {
  balancing::Profile profile;
  profile.device = "cuda:0";
  profile.rows = 5;
  profile.names = {"first", "second", "third"};
  profile.times = {{1, 2}, {3, 4}, {5, 6}};
  return profile;
}

RelayedProfile relayed(const std::vector<int64_t>& balance) {
  return relayed_profile(profile(), model(), at::zeros({5, 3}), balance);
}

TEST(RelayedProfile, RelaysTakeNoTimeAndOthersTheirOwn) {
  const RelayedProfile result = relayed({1, 1, 1});
  // The skip bypasses the second partition, so two relay layers are added.
  EXPECT_THAT(result.balance, ElementsAre(1, 3, 1));
  EXPECT_THAT(result.profile.names,
              ElementsAre("first", "third_relay1_in", "third_relay1_out",
                          "second", "third"));
  std::vector<double> forward, backward;
  for (const balancing::LayerTime& time : result.profile.times) {
    forward.push_back(time.forward);
    backward.push_back(time.backward);
  }
  EXPECT_THAT(forward, ElementsAre(1, 0, 0, 3, 5));
  EXPECT_THAT(backward, ElementsAre(2, 0, 0, 4, 6));
  EXPECT_EQ(result.profile.device, "cuda:0");
  EXPECT_EQ(result.profile.rows, 5);
}

TEST(RelayedProfile, TheSkipComesIntoEachPartitionOnItsWay) {
  constexpr int64_t kBytes = 5 * 3 * 4;
  const auto memory = relayed({1, 1, 1}).profile.memory;
  // The skip tensor and the output of the layer before come in.
  EXPECT_EQ(balancing::incoming_bytes(memory, 1, 4), 2 * kBytes);
  EXPECT_EQ(balancing::incoming_bytes(memory, 4, 5), 2 * kBytes);
}

TEST(RelayedProfile, NothingIsAddedWhereNoSkipGoesPastAPartition) {
  const RelayedProfile result = relayed({2, 1});
  EXPECT_THAT(result.balance, ElementsAre(2, 1));
  EXPECT_EQ(result.profile.names, profile().names);
}

TEST(RelayedProfile, ABalanceOfOtherLayersIsRefused) {
  EXPECT_THROW(relayed({1, 1}), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::benchmarks
