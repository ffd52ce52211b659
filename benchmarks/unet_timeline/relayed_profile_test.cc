#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "balancing/profile/testing.h"
#include "benchmarks/unet_timeline/relay.h"
#include "benchmarks/unet_timeline/skip_layers.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

// Returns a model with 3 numbers per row in each activation.
torch::nn::Sequential model() {
  torch::nn::Sequential model;
  model->push_back("first", Stash());
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
