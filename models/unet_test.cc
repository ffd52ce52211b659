#include "models/unet.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/modules/upsampling.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/skip.h"
#include "models/layers/image_layers.h"
#include "models/testing/figures.h"

namespace gpipe::models {
namespace {

using ::testing::AllOf;
using testing::count_layers;
using testing::count_parameters;
using testing::crossings_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kMiB;
using testing::layer_names;
using testing::meta_image;
using testing::norm_of;
using testing::on_meta;
using testing::parameters_by;
using testing::ramp;
using testing::sum_of;
using testing::sum_of_squares;
using ::testing::ThrowsMessage;
using torch::Tensor;
using torch::nn::Sequential;

// A setting of torchgpipe's benchmarks, or a small one.
struct UNetSetting {
  int64_t depth, num_convs, base_channels, input_channels, output_channels;
  int64_t layers, parameters;
};

constexpr UNetSetting kUNetSettings[] = {
    {5, 1, 4, 3, 1, 65, 110558},           {5, 1, 8, 3, 1, 65, 442012},
    {5, 2, 8, 3, 1, 109, 1129900},         {5, 5, 8, 3, 1, 241, 3635932},
    {5, 5, 16, 3, 1, 241, 14543288},       {3, 2, 8, 3, 1, 69, 70060},
    {4, 3, 16, 1, 2, 125, 1962016},        {5, 5, 64, 3, 1, 241, 232687328},
    {5, 6, 72, 3, 1, 285, 362157516},      {5, 11, 128, 3, 1, 505, 2213834176},
    {5, 24, 128, 3, 1, 1077, 4993859008},  {5, 24, 160, 3, 1, 1077, 7802903600},
    {5, 48, 160, 3, 1, 2133, 15822206000},
};

TEST(UNetTest, HasTheSizesOfTorchgpipe) {
  for (const UNetSetting& setting : kUNetSettings) {
    const Sequential model = on_meta([&] {
      return unet(setting.depth, setting.num_convs, setting.base_channels,
                  setting.input_channels, setting.output_channels);
    });
    EXPECT_EQ(model->size(), setting.layers);
    EXPECT_EQ(count_parameters(*model), setting.parameters);
  }
}

TEST(UNetTest, NamesLayersAsTheFlattenedPythonModel) {
  EXPECT_THAT(
      layer_names(unet(2, 1, 2)),
      ElementsAre("encoder_0_encode_0_conv", "encoder_0_encode_0_dropout",
                  "encoder_0_encode_0_norm", "encoder_0_encode_0_relu",
                  "encoder_0_skip", "encoder_0_down", "encoder_1_encode_0_conv",
                  "encoder_1_encode_0_dropout", "encoder_1_encode_0_norm",
                  "encoder_1_encode_0_relu", "encoder_1_skip", "encoder_1_down",
                  "bottleneck_0_0_conv", "bottleneck_0_0_dropout",
                  "bottleneck_0_0_norm", "bottleneck_0_0_relu", "decoder_0_up",
                  "decoder_0_skip", "decoder_0_decode_0_conv",
                  "decoder_0_decode_0_dropout", "decoder_0_decode_0_norm",
                  "decoder_0_decode_0_relu", "decoder_1_up", "decoder_1_skip",
                  "decoder_1_decode_0_conv", "decoder_1_decode_0_dropout",
                  "decoder_1_decode_0_norm", "decoder_1_decode_0_relu",
                  "segment"));
}

TEST(UNetTest, HasTheLayersOfTorchgpipe) {
  using namespace torch::nn;  // NOLINT: the layers' names
  const Sequential model = unet(5, 5, 8);
  for (const int count :
       {count_layers<Dropout2d>(model), count_layers<InstanceNorm2d>(model),
        count_layers<LeakyReLU>(model)}) {
    EXPECT_EQ(count, 55);
  }
  EXPECT_EQ(count_layers<Conv2d>(model), 56);
  EXPECT_EQ(count_layers<MaxPool2d>(model), 5);
  EXPECT_EQ(count_layers<Upsample>(model), 5);
  EXPECT_EQ(count_layers<UNetStash>(model), 5);
  EXPECT_EQ(count_layers<UNetPopCat>(model), 5);
  EXPECT_NO_THROW(verify_skippables(model));
}

// The balances of torchgpipe's speed benchmark.
TEST(UNetTest, HasTheParametersOfTorchgpipesPartitions) {
  const Sequential model = on_meta([] { return unet(); });
  EXPECT_THAT(parameters_by(model, {104, 137}),
              ElementsAre(47113920, 185573408));
  EXPECT_THAT(parameters_by(model, {30, 66, 84, 61}),
              ElementsAre(370368, 27869184, 203489280, 958496));
  EXPECT_THAT(parameters_by(model, {34, 76, 70, 61}),
              ElementsAre(517824, 56033280, 175177728, 958496));
  EXPECT_THAT(parameters_by(model, {16, 27, 31, 44, 22, 57, 27, 17}),
              ElementsAre(112320, 700416, 6193152, 106168320, 106168320,
                          12976128, 331776, 36896));
}

// The balances of its memory benchmark, with up to 15,822,206,000 parameters in
// total.
TEST(UNetTest, HasTheParametersOfTorchgpipesLargePartitions) {
  const auto parameters_of = [](int64_t num_convs, int64_t base_channels,
                                const std::vector<int64_t>& balance) {
    return parameters_by(
        on_meta([&] { return unet(5, num_convs, base_channels); }), balance);
  };
  EXPECT_THAT(parameters_of(11, 128, {505}), ElementsAre(2213834176));
  EXPECT_THAT(parameters_of(24, 128, {526, 551}),
              ElementsAre(2465025408, 2528833600));
  EXPECT_THAT(parameters_of(24, 160, {472, 54, 36, 515}),
              ElementsAre(1610269920, 2241331200, 2123366400, 1827936080));
  EXPECT_THAT(parameters_of(48, 160, {800, 140, 62, 36, 36, 36, 36, 987}),
              ElementsAre(1254532320, 2064384000, 2182348800, 2123366400,
                          2123366400, 2123366400, 2123366400, 1827475280));
}

// Bytes per sample at 192 x 192.
TEST(UNetTest, MovesTheBytesOfTorchgpipe) {
  struct Cut {
    int64_t num_convs, base_channels;
    std::vector<int64_t> balance;
    double boundary, skips;  // in MiB
  };
  const Cut cuts[] = {
      {5, 64, {104, 137}, 0.5625, 16.875},
      {5, 64, {30, 66, 84, 61}, 6.1875, 16.875},
      {5, 64, {34, 76, 70, 61}, 5.765625, 17.4375},
      {5, 64, {16, 27, 31, 44, 22, 57, 27, 17}, 24.1875, 17.4375},
      {24, 160, {472, 54, 36, 515}, 2.8125, 43.59375},
      {48, 160, {800, 140, 62, 36, 36, 36, 36, 987}, 6.328125, 43.59375},
  };
  for (const Cut& cut : cuts) {
    const Sequential model =
        on_meta([&] { return unet(5, cut.num_convs, cut.base_channels); });
    const auto crossings = crossings_of(model, cut.balance, meta_image(192));
    EXPECT_EQ(crossings.boundary / kMiB, cut.boundary);
    EXPECT_EQ(crossings.skips / kMiB, cut.skips);
  }
}

// The numbers of the next three tests come from the same model in Python (torch
// 2.11.0, CPU), with torchgpipe and its benchmarks/models on the path:
//
//   torch.manual_seed(0); model = unet(3, 2, 8, 3, 1)
//   [f(p.double()) for p in model.parameters()], summed, for f = torch.sum and
//   lambda p: p.square().sum(); model.get_parameter(name).norm()
TEST(UNetTest, DrawsTheWeightsOfThePythonModel) {
  torch::manual_seed(0);
  const Sequential model = unet(3, 2, 8, 3, 1);
  EXPECT_EQ(model->parameters().size(), 15);
  EXPECT_TRUE(model->buffers().empty());
  EXPECT_NEAR(sum_of(model->parameters()), 2.01453139258, 1e-9);
  EXPECT_NEAR(sum_of_squares(model->parameters()), 87.9481410394, 1e-9);
  EXPECT_NEAR(norm_of(model, "encoder_0_encode_0_conv.weight"), 1.61713894744,
              1e-7);
  EXPECT_NEAR(norm_of(model, "bottleneck_0_1_conv.weight"), 3.26426105369,
              1e-7);
  EXPECT_NEAR(norm_of(model, "decoder_0_decode_0_conv.weight"), 2.30682416071,
              1e-7);
  EXPECT_NEAR(norm_of(model, "decoder_2_decode_1_conv.weight"), 1.1544417688,
              1e-7);
  EXPECT_NEAR(norm_of(model, "segment.weight"), 0.604021220945, 1e-7);
}

//   unet(2, 1, 4, 2, 3) and unet(4, 3, 16, 1, 2)
TEST(UNetTest, DrawsTheWeightsOfThePythonModelForOtherArguments) {
  torch::manual_seed(0);
  EXPECT_NEAR(sum_of(unet(2, 1, 4, 2, 3)->parameters()), -2.36496798697, 1e-9);
  torch::manual_seed(0);
  EXPECT_NEAR(sum_of(unet(4, 3, 16, 1, 2)->parameters()), 10.359955941, 1e-8);
}

//   x = torch.linspace(-1, 1, 2*3*37*50, dtype=torch.double)
//   x = x.view(2, 3, 37, 50); model.double()
//   y = model.eval()(x); y.sum(), y.norm()
//   torch.manual_seed(1); y = model.train()(x); y.square().sum().backward();
//   and the sums of y, and of the squares of all gradients
TEST(UNetTest, ComputesWhatThePythonModelComputes) {
  torch::manual_seed(0);
  Sequential model = unet(3, 2, 8, 3, 1);
  model->to(torch::kDouble);
  const Tensor x = ramp({2, 3, 37, 50}, torch::kDouble);
  model->eval();
  Tensor y = model->forward(x);
  EXPECT_THAT(y.sizes(), ElementsAre(2, 1, 37, 50));
  EXPECT_NEAR(sum_of({y}), 679.529887932829, 1e-8);
  EXPECT_NEAR(y.norm().item<double>(), 31.7949389658134, 1e-9);
  model->train();
  torch::manual_seed(1);
  y = model->forward(x);
  y.square().sum().backward();
  EXPECT_NEAR(sum_of({y}), 670.903171675438, 1e-8);
  EXPECT_NEAR(y.norm().item<double>(), 35.0322791824529, 1e-9);
  EXPECT_NEAR(sum_of_squares(testing::gradients_of(model)), 115370580.331304,
              1e-1);
}

TEST(UNetTest, GivesASampleOfTheInputsSize) {
  torch::NoGradGuard no_grad;
  Sequential model = unet(3, 1, 2, 4, 5);
  const std::vector<std::vector<int64_t>> sizes = {
      {16, 8}, {8, 16}, {9, 17}, {15, 31}, {16, 16}, {23, 40}, {63, 65}};
  for (const auto& size : sizes) {
    const auto output = model->forward(torch::randn({2, 4, size[0], size[1]}));
    EXPECT_THAT(output.sizes(), ElementsAre(2, 5, size[0], size[1]));
  }
}

TEST(UNetTest, PadsAtTheBottomAndOnTheRight) {
  const Namespace ns;
  UNetStash stash(ns);
  UNetPopCat pop_cat(ns);
  const Tensor skip = torch::randn({2, 3, 5, 7});
  const Tensor below = torch::randn({2, 4, 4, 6});
  EXPECT_TRUE(stash->forward(skip).equal(skip));
  const Tensor output = pop_cat->forward(below);
  ASSERT_THAT(output.sizes(), ElementsAre(2, 7, 5, 7));
  EXPECT_TRUE(output.slice(1, 0, 4).slice(2, 0, 4).slice(3, 0, 6).equal(below));
  EXPECT_EQ(output.slice(1, 0, 4).slice(2, 4).abs().sum().item<float>(), 0);
  EXPECT_EQ(output.slice(1, 0, 4).slice(3, 6).abs().sum().item<float>(), 0);
  EXPECT_TRUE(output.slice(1, 4).equal(skip));
}

TEST(UNetTest, GivesACloneItsOwnWeights) {
  Sequential model = unet(2, 2, 4);
  testing::expect_clone_with_own_weights(model, ramp({1, 3, 9, 9}));
  // The clone has the checks, too.
  Sequential copy(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()));
  EXPECT_THROW(copy->forward(torch::zeros({1, 3, 2, 2})), c10::ValueError);
}

auto unet_refuses(const std::string& argument, const std::string& allowed) {
  return ThrowsMessage<c10::ValueError>(
      AllOf(HasSubstr("unet"), HasSubstr(argument), HasSubstr(allowed)));
}

TEST(UNetTest, NamesTheArgumentThatIsNotAllowed) {
  for (const int64_t depth : {-1, 0, 21, 100}) {
    EXPECT_THAT([&] { unet(depth); }, unet_refuses("depth", "1 to 20"));
  }
  for (const int64_t value : {-1, 0}) {
    EXPECT_THAT([&] { unet(2, value); },
                unet_refuses("num_convs", "at least 1"));
    EXPECT_THAT([&] { unet(2, 1, 2, value); },
                unet_refuses("input_channels", "at least 1"));
    EXPECT_THAT([&] { unet(2, 1, 2, 3, value); },
                unet_refuses("output_channels", "at least 1"));
  }
  for (const int64_t channels : {-2, 0, 1, 7}) {
    EXPECT_THAT([&] { unet(2, 1, channels); },
                unet_refuses("base_channels", "even, at least 2"));
  }
}

TEST(UNetTest, NamesTheInputThatIsNotAllowed) {
  Sequential model = unet(3, 1, 2, 2);
  const std::vector<std::vector<int64_t>> channels = {
      {1, 1, 32, 32}, {1, 3, 32, 32}, {2, 32, 32}};
  for (const auto& shape : channels) {
    EXPECT_THAT([&] { model->forward(torch::zeros(shape)); },
                unet_refuses("input", "[batch, 2, height, width]"));
  }
  const std::vector<std::vector<int64_t>> sizes = {
      {0, 0}, {1, 1}, {4, 4}, {7, 64}, {64, 7}, {8, 8}, {15, 15}};
  for (const auto& size : sizes) {
    EXPECT_THAT(
        [&] {
          model->forward(torch::zeros({1, 2, size[0], size[1]}));
        },
        unet_refuses("depth of 3",
                     "height and width of the input must be at least 8, and "
                     "one of them at least 16"));
  }
}

}  // namespace
}  // namespace gpipe::models
