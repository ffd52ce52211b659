#include "benchmarks/peers/peer_model.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gpipe/testing/thrown.h"

namespace gpipe::benchmarks {
namespace {

int64_t parameters_of(const PeerModel& model) {
  int64_t count = 0;
  for (const at::Tensor& each : model.model->parameters()) {
    count += each.numel();
  }
  return count;
}

double loss_of(PeerModel& model) {
  return model.loss(model.model->forward(model.input), model.target)
      .item<double>();
}

// With a width w, a Linear has w w + w parameters, and a block 12 w w + 13 w.
TEST(PeerModel, HasTheParametersOfItsSizes) {
  const PeerModel mlp = make_peer_model("mlp", {2, 3, 8, 0}, 0);
  EXPECT_EQ(mlp.model->size(), 6U);
  EXPECT_EQ(parameters_of(mlp), 3 * (8 * 8 + 8));

  const PeerModel blocks = make_peer_model("transformer", {2, 3, 8, 5}, 0);
  EXPECT_EQ(blocks.model->size(), 6U);
  EXPECT_EQ(parameters_of(blocks), 3 * (12 * 8 * 8 + 13 * 8));

  // The counts of torchgpipe's models.
  const PeerModel unet = make_peer_model("unet", {1, 5, 8, 64}, 0);
  EXPECT_EQ(unet.model->size(), 109U);
  EXPECT_EQ(parameters_of(unet), 1129900);
  const PeerModel amoebanet = make_peer_model("amoebanetd", {2, 3, 32, 32}, 0);
  EXPECT_EQ(amoebanet.model->size(), 9U);
  EXPECT_EQ(parameters_of(amoebanet), 391354);
}

TEST(PeerModel, OneSeedGivesOneLoss) {
  for (const std::string& name : peer_model_names()) {
    if (name == "resnet101") continue;  // its only size takes long
    const PeerModelSizes sizes = {2, 3, 32, 64};
    PeerModel one = make_peer_model(name, sizes, 1);
    // Dropout draws from the same generator, so the loss is computed at once.
    const double loss = loss_of(one);
    PeerModel same = make_peer_model(name, sizes, 1);
    EXPECT_EQ(loss_of(same), loss) << name;
    PeerModel other = make_peer_model(name, sizes, 2);
    EXPECT_NE(loss_of(other), loss) << name;
  }
}

TEST(PeerModel, NamesThoseThatThereAre) {
  EXPECT_EQ(testing::thrown<std::invalid_argument>([] {
              make_peer_model("alexnet", {1, 1, 8, 8}, 0);
            }),
            "--model=alexnet: expected resnet101, unet, amoebanetd, mlp, "
            "transformer");
  EXPECT_THROW(make_peer_model("mlp", {0, 1, 8, 8}, 0), std::invalid_argument);
}

constexpr char kGpt[] = "models/exported/testdata/gpt.pt2";  // of 3 blocks

TEST(ExportedPeer, TokensAreThoseOfTheVocabulary) {
  const PeerModel data = exported_peer_data(kGpt, 50, 12, 0);
  EXPECT_EQ(data.input.sizes().vec(), (std::vector<int64_t>{50, 12}));
  EXPECT_EQ(data.input.max().item<int64_t>(), 30);
  EXPECT_EQ(data.target.sizes(), data.input.sizes());
  EXPECT_FALSE(data.target.equal(data.input));
}

TEST(ExportedPeer, PartitionsBeginAtTheModules) {
  const auto whole = balance_of_modules(kGpt, {});
  ASSERT_EQ(whole.size(), 1U);
  const auto one = balance_of_modules(kGpt, {"blocks.1"});
  const auto two = balance_of_modules(kGpt, {"blocks.1", "blocks.2"});
  ASSERT_EQ(two.size(), 3U);
  EXPECT_EQ(one[0], two[0]);
  EXPECT_EQ(one[1], two[1] + two[2]);
  EXPECT_EQ(one[0] + one[1], whole[0]);
}

TEST(ExportedPeer, AModuleThatIsNotThereIsNamed) {
  EXPECT_THAT(
      [] {
        balance_of_modules(kGpt, {"blocks.2", "blocks.1"});
      },
      ::testing::ThrowsMessage<std::invalid_argument>(
          ::testing::HasSubstr("--cut=blocks.1: ")));
  EXPECT_THROW(balance_of_modules(kGpt, {"blocks.7"}), std::invalid_argument);
}

}  // namespace
}  // namespace gpipe::benchmarks
