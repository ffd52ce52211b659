#include "models/amoebanet.h"

#include <ATen/ops/adaptive_avg_pool2d.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/pooling.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gpipe/skip.h"
#include "models/layers/amoebanet_cell.h"
#include "models/testing/figures.h"

namespace gpipe::models {
namespace {

using ::testing::AllOf;
using testing::count_modules;
using testing::count_parameters;
using testing::crossings_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::layer_names;
using testing::meta_image;
using testing::norm_of;
using testing::on_meta;
using testing::parameters_by;
using testing::parameters_by_layer;
using testing::ramp;
using testing::sum_of;
using testing::sum_of_squares;
using ::testing::ThrowsMessage;
using torch::Tensor;
using torch::nn::Sequential;

// A setting of the papers or of torchgpipe's benchmarks, or a small one.
struct Setting {
  int64_t classes, num_layers, num_filters;
  int64_t layers, parameters;
};

// Table 1 of the GPipe paper has (18,208), (18,416), (18,544).
constexpr Setting kSettings[] = {
    {10, 3, 32, 9, 391354},          {10, 3, 64, 9, 1541066},
    {10, 6, 64, 12, 2686346},        {10, 12, 64, 18, 5067018},
    {1000, 18, 128, 24, 31694440},   {1000, 18, 208, 24, 81505540},
    {1000, 18, 256, 24, 122470120},  {1000, 18, 416, 24, 319024120},
    {1000, 18, 512, 24, 481268200},  {1000, 18, 544, 24, 542734840},
    {1000, 36, 544, 42, 1055832376}, {1000, 72, 512, 78, 1844858344},
};

TEST(AmoebaNetTest, HasTheSizesOfThePapers) {
  for (const Setting& setting : kSettings) {
    const Sequential model = on_meta([&] {
      return amoebanetd(setting.classes, setting.num_layers,
                        setting.num_filters);
    });
    EXPECT_EQ(model->size(), setting.layers);
    EXPECT_EQ(count_parameters(*model), setting.parameters);
  }
}

// The partitions of torchgpipe's memory benchmark.
TEST(AmoebaNetTest, HasThePartitionsOfTorchgpipesLargeModels) {
  const auto parameters_of = [](int64_t num_layers, int64_t num_filters,
                                const std::vector<int64_t>& balance) {
    return parameters_by(
        on_meta([&] { return amoebanetd(1000, num_layers, num_filters); }),
        balance);
  };
  EXPECT_THAT(parameters_of(18, 544, {16, 8}),
              ElementsAre(126868688, 415866152));
  EXPECT_THAT(parameters_of(36, 544, {16, 12, 7, 7}),
              ElementsAre(58304016, 190804736, 407161152, 399562472));
  EXPECT_THAT(parameters_of(72, 512, {23, 16, 11, 6, 6, 5, 5, 6}),
              ElementsAre(72748032, 176858624, 158788608, 216433664, 346238976,
                          288532480, 288532480, 296725480));
}

TEST(AmoebaNetTest, NamesLayersByStage) {
  EXPECT_THAT(layer_names(amoebanetd(10, 6, 8)),
              ElementsAre("stem1", "stem2", "stem3", "cell1_normal1",
                          "cell1_normal2", "cell2_reduction", "cell3_normal1",
                          "cell3_normal2", "cell4_reduction", "cell5_normal1",
                          "cell5_normal2", "classify"));
}

TEST(AmoebaNetTest, HasTheModulesAndParametersOfTorchgpipe) {
  using namespace torch::nn;  // NOLINT: the layers' names
  const Sequential model = on_meta([] { return amoebanetd(1000, 18, 256); });
  EXPECT_EQ(count_modules<Conv2d>(model), 279);
  EXPECT_EQ(count_modules<BatchNorm2d>(model), 275);
  EXPECT_EQ(count_modules<AvgPool2d>(model), 67);
  EXPECT_EQ(count_modules<MaxPool2d>(model), 8);
  EXPECT_EQ(count_modules<amoebanet::FactorizedReduce>(model), 4);
  int cells = 0;
  for (const auto& child : model->children()) {
    if (child->named_children().contains("operations")) ++cells;
  }
  EXPECT_EQ(cells, 22);
  EXPECT_EQ(model->parameters().size(), 831);
  EXPECT_THAT(
      parameters_by_layer(model),
      ElementsAre(1856, 74304, 343168, 676096, 839936, 905472, 905472, 905472,
                  905472, 1956096, 2826752, 3351040, 3613184, 3613184, 3613184,
                  3613184, 7811584, 11289600, 13386752, 14435328, 14435328,
                  14435328, 14435328, 4097000));
  // The balances of torchgpipe's speed benchmark.
  EXPECT_THAT(parameters_by(model, {7, 17}), ElementsAre(3746304, 118723816));
  EXPECT_THAT(parameters_by(model, {9, 15}), ElementsAre(5557248, 116912872));
  EXPECT_THAT(parameters_by(model, {3, 6, 7, 8}),
              ElementsAre(419328, 5137920, 22586624, 94326248));
  EXPECT_THAT(parameters_by(model, {2, 2, 2, 3, 3, 4, 4, 4}),
              ElementsAre(76160, 1019264, 1745408, 2716416, 8133888, 14452736,
                          46923264, 47402984));
  EXPECT_NO_THROW(verify_skippables(model));
}

TEST(AmoebaNetTest, CanTakeTheMaximumForTheSameParameters) {
  using namespace torch::nn;  // NOLINT: the layers' names
  const auto options = AmoebaNetOptions().num_layers(3).num_filters(32);
  const Sequential model =
      amoebanetd(AmoebaNetOptions(options).true_max_pool(true));
  // Each of the seven cells has two 3x3 pools that change and one that does
  // not. The four reduction cells have two 2x2 pools each.
  EXPECT_EQ(count_modules<MaxPool2d>(model), 8 + 14);
  EXPECT_EQ(count_modules<AvgPool2d>(model), 7 + 1);
  EXPECT_EQ(count_modules<MaxPool2d>(amoebanetd(options)), 8);
  EXPECT_EQ(count_modules<AvgPool2d>(amoebanetd(options)), 21 + 1);
  EXPECT_EQ(model->named_parameters().keys(),
            amoebanetd(options)->named_parameters().keys());
  EXPECT_EQ(count_parameters(*model), 391354);
}

// The numbers of the next three tests come from the same model in Python (torch
// 2.11.0, CPU), with torchgpipe's benchmarks/models on the path:
//
//   torch.manual_seed(0); model = amoebanetd(10, 3, 32)
//   [f(p.double()) for p in model.parameters()], summed, for f = torch.sum and
//   lambda p: p.square().sum(); model.get_parameter(name).norm()
TEST(AmoebaNetTest, DrawsTheWeightsOfThePythonModel) {
  torch::manual_seed(0);
  const Sequential model = amoebanetd(10, 3, 32);
  EXPECT_EQ(model->parameters().size(), 246);
  EXPECT_NEAR(sum_of(model->parameters()), 3457.87613048, 1e-7);
  EXPECT_NEAR(sum_of_squares(model->parameters()), 4552.27321036, 1e-7);
  EXPECT_NEAR(norm_of(model, "stem1.conv.weight"), 1.61713894744, 1e-7);
  EXPECT_NEAR(norm_of(model, "stem3.reduce2.conv2.weight"), 2.17085305171,
              1e-7);
  EXPECT_NEAR(norm_of(model, "cell2_reduction.operations.4.module.4.weight"),
              2.28068267246, 1e-7);
  EXPECT_NEAR(norm_of(model, "cell5_normal1.operations.9.module.1.weight"),
              6.5268356078, 1e-7);
  EXPECT_NEAR(norm_of(model, "classify.fc.weight"), 1.82009925972, 1e-7);
  EXPECT_NEAR(norm_of(model, "classify.fc.bias"), 0.0791781758095, 1e-8);
}

//   torch.manual_seed(0); model = amoebanetd(10, 6, 64)
TEST(AmoebaNetTest, DrawsTheWeightsOfThePythonModelWithMoreCells) {
  torch::manual_seed(0);
  const Sequential model = amoebanetd(10, 6, 64);
  EXPECT_NEAR(sum_of(model->parameters()), 10693.387721, 1e-6);
  EXPECT_NEAR(sum_of_squares(model->parameters()), 14180.7587036, 1e-6);
}

//   x = torch.linspace(-1, 1, 2*3*224*224, dtype=torch.double)
//   x = x.view(2, 3, 224, 224); model.double()
//   y = model.eval()(x); y.sum(), y.norm()
//   y = model.train()(x); y.square().sum().backward(); and the sums of y, of
//   the squares of all gradients, and of all buffers
TEST(AmoebaNetTest, ComputesWhatThePythonModelComputes) {
  torch::manual_seed(0);
  Sequential model = amoebanetd(10, 3, 32);
  model->to(torch::kDouble);
  const Tensor x = ramp({2, 3, 224, 224}, torch::kDouble);
  model->eval();
  Tensor y = model->forward(x);
  EXPECT_THAT(y.sizes(), ElementsAre(2, 10));
  EXPECT_NEAR(sum_of({y}), -0.0942250253529745, 1e-12);
  EXPECT_NEAR(y.norm().item<double>(), 0.112094750075181, 1e-12);
  model->train();
  y = model->forward(x);
  y.square().sum().backward();
  EXPECT_NEAR(sum_of({y}), 0.00341660488171769, 1e-11);
  EXPECT_NEAR(y.norm().item<double>(), 1.15789725062451, 1e-11);
  EXPECT_NEAR(sum_of_squares(testing::gradients_of(model)), 13288.6403373827,
              1e-6);
  EXPECT_NEAR(sum_of(model->buffers()), 3248.55351543889, 1e-8);
}

// Returns the output of the last cell for an image of `height` x `width`.
Tensor features_of(Sequential& model, int64_t height, int64_t width) {
  torch::NoGradGuard no_grad;
  torch::nn::AnyValue value{ramp({1, 3, height, width})};
  for (std::size_t k = 0; k + 1 < model->size(); ++k) {
    value = (model->begin() + k)->any_forward(std::move(value));
  }
  return std::get<0>(value.get<std::tuple<Tensor, Tensor>>());
}

TEST(AmoebaNetTest, PoolsAllPixelsAt224AsTheFixedPoolDoes) {
  Sequential model = amoebanetd(10, 3, 8);
  model->eval();
  const Tensor features = features_of(model, 224, 224);
  EXPECT_THAT(features.sizes(), ElementsAre(1, 128, 7, 7));
  torch::nn::AvgPool2d fixed(7);
  EXPECT_TRUE(fixed->forward(features).allclose(
      at::adaptive_avg_pool2d(features, {1, 1}), 1e-6, 1e-7));
}

TEST(AmoebaNetTest, PoolsWhatThereIsWhere7x7DoesNotFit) {
  torch::NoGradGuard no_grad;
  Sequential model = amoebanetd(5, 3, 8);
  model->eval();
  const auto parameters = model->named_parameters();
  for (const auto& [height, width] : std::vector<std::pair<int64_t, int64_t>>{
           {32, 32}, {31, 63}, {96, 224}, {448, 224}, {224, 480}}) {
    const Tensor output = model->forward(ramp({1, 3, height, width}));
    const Tensor pooled = features_of(model, height, width).mean({2, 3});
    EXPECT_THAT(output.sizes(), ElementsAre(1, 5));
    EXPECT_TRUE(
        output.allclose(torch::linear(pooled, parameters["classify.fc.weight"],
                                      parameters["classify.fc.bias"]),
                        1e-5, 1e-6))
        << height << " x " << width;
  }
}

TEST(AmoebaNetTest, SeesTheFirstSevenPixelsAsTorchgpipeDoes) {
  torch::NoGradGuard no_grad;
  Sequential model = amoebanetd(5, 3, 8);
  model->eval();
  const auto parameters = model->named_parameters();
  const Tensor features = features_of(model, 256, 224);
  ASSERT_EQ(features.size(2), 8);
  EXPECT_TRUE(model->forward(ramp({1, 3, 256, 224}))
                  .allclose(torch::linear(features.slice(2, 0, 7).mean({2, 3}),
                                          parameters["classify.fc.weight"],
                                          parameters["classify.fc.bias"]),
                            1e-5, 1e-6));
}

TEST(AmoebaNetTest, PassesPairsOfTheSizesOfTorchgpipe) {
  const Sequential model = on_meta([] { return amoebanetd(1000, 18, 256); });
  const auto bytes_after = [&](int64_t layer) {
    const auto crossings =
        crossings_of(model, {layer, 24 - layer}, meta_image(224));
    EXPECT_EQ(crossings.skips, 0);
    return crossings.boundary;
  };
  const auto bytes = [](int64_t channels, int64_t size) {
    return channels * size * size * 4;
  };
  EXPECT_EQ(bytes_after(1), bytes(64, 112));
  EXPECT_EQ(bytes_after(2), bytes(384, 56) + bytes(64, 112));
  EXPECT_EQ(bytes_after(3), bytes(768, 28) + bytes(384, 56));
  EXPECT_EQ(bytes_after(4), bytes(1024, 28) + bytes(768, 28));
  for (const int64_t layer : {6, 7, 8, 9}) {
    EXPECT_EQ(bytes_after(layer), 2 * bytes(1024, 28));
  }
  EXPECT_EQ(bytes_after(10), bytes(1536, 14) + bytes(1024, 28));
  for (const int64_t layer : {12, 13, 14, 15, 16}) {
    EXPECT_EQ(bytes_after(layer), 2 * bytes(2048, 14));
  }
  EXPECT_EQ(bytes_after(17), bytes(3072, 7) + bytes(2048, 14));
  EXPECT_EQ(bytes_after(20), 2 * bytes(4096, 7));
}

TEST(AmoebaNetTest, GivesACloneItsOwnWeights) {
  testing::expect_clone_with_own_weights(amoebanetd(10, 3, 8),
                                         ramp({1, 3, 32, 64}));
}

TEST(AmoebaNetTest, NamesTheArgumentThatIsNotAllowed) {
  const auto refuses = [](const std::string& argument,
                          const std::string& allowed) {
    return ThrowsMessage<c10::ValueError>(AllOf(
        HasSubstr("amoebanetd"), HasSubstr(argument), HasSubstr(allowed)));
  };
  for (const int64_t classes : {0, -1}) {
    EXPECT_THAT([&] { amoebanetd(classes, 3, 8); },
                refuses("num_classes", "at least 1"));
  }
  for (const int64_t layers : {-3, 0, 1, 2, 4, 19}) {
    EXPECT_THAT([&] { amoebanetd(10, layers, 8); },
                refuses("num_layers", "multiple of 3, at least 3"));
  }
  for (const int64_t filters : {-8, 0, 4, 12, 513}) {
    EXPECT_THAT([&] { amoebanetd(10, 3, filters); },
                refuses("num_filters", "multiple of 8, at least 8"));
  }
}

TEST(AmoebaNetTest, NamesTheInputThatIsNotAllowed) {
  Sequential model = amoebanetd(10, 3, 8);
  const auto refuses = [](const std::string& allowed) {
    return ThrowsMessage<c10::ValueError>(
        AllOf(HasSubstr("amoebanetd"), HasSubstr("input"), HasSubstr(allowed)));
  };
  const std::vector<std::vector<int64_t>> shapes = {
      {2, 1, 64, 64}, {2, 4, 64, 64}, {3, 64, 64}};
  for (const auto& shape : shapes) {
    EXPECT_THAT([&] { model->forward(torch::zeros(shape)); },
                refuses("[batch, 3, height, width]"));
  }
  for (const int64_t size : {0, 1, 16, 30, 33, 48, 62, 222, 225}) {
    EXPECT_THAT(
        [&] {
          model->forward(torch::zeros({2, 3, 64, size}));
        },
        refuses("multiples of 32"));
    EXPECT_THAT(
        [&] {
          model->forward(torch::zeros({2, 3, size, 64}));
        },
        refuses("multiples of 32"));
  }
}

}  // namespace
}  // namespace gpipe::models
