#include "gpipe/placement/tree.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <optional>
#include <utility>

namespace gpipe::placement {
namespace {

struct Net : torch::nn::Module {
  explicit Net(const torch::nn::Linear& layer) {
    register_module("layer", layer);
  }
};

TEST(Witness, LivesAsLongAsAModuleWithoutOwner) {
  const torch::nn::Linear layer(1, 1);
  std::optional<Net> net(layer);
  const Witness witness(*net);
  EXPECT_TRUE(witness.lives());
  const Net copy = *net;
  net.reset();
  EXPECT_FALSE(witness.lives()) << "neither its layer nor a copy is the module";
}

TEST(Witness, LivesAsLongAsTheLastOwner) {
  auto net = std::make_shared<torch::nn::Module>();
  auto other = net;
  const Witness witness(*net);
  net.reset();
  EXPECT_TRUE(witness.lives());
  other.reset();
  EXPECT_FALSE(witness.lives());
}

TEST(Witness, OwnsNothing) {
  const torch::nn::Module net;
  const Witness witness(net);
  EXPECT_TRUE(net.weak_from_this().expired());
}

TEST(Witness, AnotherOneOfTheSameModuleTakesOver) {
  std::optional<torch::nn::Module> net(std::in_place);
  Witness witness(*net);
  witness = Witness(*net);
  EXPECT_TRUE(witness.lives());
  net.reset();
  EXPECT_FALSE(witness.lives());
}

TEST(Witness, TheFirstOwnerLooksLikeTheEnd) {
  auto net = std::make_unique<torch::nn::Module>();
  const Witness witness(*net);
  const std::shared_ptr<torch::nn::Module> owner = std::move(net);
  EXPECT_FALSE(witness.lives());
  EXPECT_EQ(owner.use_count(), 1);
  EXPECT_TRUE(Witness(*owner).lives());
}

}  // namespace
}  // namespace gpipe::placement
