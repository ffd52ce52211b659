#include "models/named.h"

#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "balancing/balancing.h"
#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/unet.h"

namespace gpipe::models {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

TEST(NamedModel, EveryNameIsInTheListOfItsKind) {
  EXPECT_THAT(model_names(),
              IsSupersetOf({"resnet50", "resnet101", "amoebanetd", "unet",
                            "transformer"}));
  for (const std::string& name : model_names()) {
    EXPECT_THAT(model_names(data_kind_of(name)), Contains(name));
  }
  EXPECT_THAT(model_names(DataKind::kMasks), Not(Contains("resnet50")));
}

TEST(NamedModel, HasTheSizesOfItsOptions) {
  const auto layers = [](const std::string& name, const ModelOptions& options) {
    return named_model(name, options)->size();
  };
  EXPECT_EQ(layers("resnet50", {.classes = 2}), 183);
  EXPECT_EQ(layers("amoebanetd", {.layers = 3, .width = 8}), 9);
  EXPECT_EQ(layers("unet", {.depth = 1, .convolutions = 1, .width = 2}), 17);
  EXPECT_EQ(layers("transformer", {.layers = 2, .width = 8}), 7);
}

TEST(NamedModel, TheDefaultsAreTheUsualSizes) {
  std::set<std::string> flags;
  for (const std::string& name : model_names()) {
    const ModelOptions options = default_options(name);
    for (const ModelSize& size : model_sizes(name)) {
      EXPECT_EQ(options.*size.option, size.usual) << size.flag;
      EXPECT_TRUE(flags.insert(size.flag).second) << size.flag;
    }
  }
  EXPECT_EQ(default_options("unet").depth, 5);
  EXPECT_EQ(default_options("resnet50").classes, 1000);
}

TEST(NamedModel, TorchvisionHasResNets) {
  EXPECT_THAT(torchvision_names("resnet50"), SizeIs(320));
  EXPECT_THAT(torchvision_names("resnet101"), SizeIs(626));
  EXPECT_THAT(torchvision_names("unet"), IsEmpty());
  EXPECT_THAT(torchvision_names("vgg"), IsEmpty());
}

TEST(NamedModel, IsCutByTime) {
  const std::pair<torch::nn::Sequential, torch::Tensor> cases[] = {
      {amoebanetd(10, 3, 8), torch::rand({2, 3, 64, 64})},
      {unet(2, 1, 4), torch::rand({2, 3, 16, 16})},
      {resnet50(10), torch::rand({2, 3, 32, 32})}};
  for (const auto& [model, input] : cases) {
    const auto balance = balancing::balance_by_time(
        4, model, input, balancing::TimeOptions().timeout(0));
    EXPECT_THAT(balance, AllOf(SizeIs(4), Each(Ge(1))));
    EXPECT_EQ(std::accumulate(balance.begin(), balance.end(), std::size_t{0}),
              model->size());
  }
}

TEST(NamedModel, AnUnknownNameIsAnErrorWithAllNames) {
  EXPECT_THAT([] { named_model("vgg", {}); },
              ThrowsMessage<c10::ValueError>(
                  HasSubstr("--model=vgg: must be one of " +
                            absl::StrJoin(model_names(), ", "))));
}

}  // namespace
}  // namespace gpipe::models
