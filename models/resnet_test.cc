#include "models/resnet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/utils.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/skip.h"
#include "models/testing/figures.h"

namespace gpipe::models {
namespace {

using testing::count_layers;
using testing::count_parameters;
using testing::crossings_of;
using ::testing::ElementsAre;
using testing::norm_of;
using testing::parameters_by;
using testing::sum_of;
using testing::sum_of_squares;
using torch::nn::Sequential;

// Building the model takes a second, so the tests that only read it share one.
class ResNet101Test : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    torch::manual_seed(0);
    model_ = new Sequential(resnet101());
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }
  static const Sequential& model() { return *model_; }

 private:
  static Sequential* model_;
};

Sequential* ResNet101Test::model_ = nullptr;

TEST_F(ResNet101Test, HasTheLayersOfTorchgpipe) {
  using namespace torch::nn;  // NOLINT: the layers' names
  EXPECT_EQ(model()->size(), 370);
  EXPECT_EQ(count_layers<Conv2dImpl>(model()), 100);
  EXPECT_EQ(count_layers<BatchNorm2dImpl>(model()), 100);
  EXPECT_EQ(count_layers<ReLUImpl>(model()), 100);
  EXPECT_EQ(count_layers<MaxPool2dImpl>(model()), 1);
  EXPECT_EQ(count_layers<AdaptiveAvgPool2dImpl>(model()), 1);
  EXPECT_EQ(count_layers<FlattenImpl>(model()), 1);
  EXPECT_EQ(count_layers<LinearImpl>(model()), 1);
  int stashing = 0, popping = 0;
  for (const auto& child : model()->children()) {
    if (auto skippable = std::dynamic_pointer_cast<Skippable>(child)) {
      stashing += static_cast<int>(skippable->stashable().size());
      popping += static_cast<int>(skippable->poppable().size());
    }
  }
  EXPECT_EQ(stashing, 33);
  EXPECT_EQ(popping, 33);
}

TEST_F(ResNet101Test, NamesLayersByStageAndBlock) {
  const auto children = model()->named_children();
  std::vector<std::string> first;
  for (std::size_t k = 0; k < 15; ++k) first.push_back(children[k].key());
  EXPECT_THAT(
      first, ElementsAre("conv1", "bn1", "relu", "maxpool", "layer1_0_identity",
                         "layer1_0_conv1", "layer1_0_bn1", "layer1_0_relu1",
                         "layer1_0_conv2", "layer1_0_bn2", "layer1_0_relu2",
                         "layer1_0_conv3", "layer1_0_bn3", "layer1_0_residual",
                         "layer1_0_relu3"));
  std::vector<std::string> last;
  for (std::size_t k = 366; k < 370; ++k) last.push_back(children[k].key());
  EXPECT_THAT(last, ElementsAre("layer4_2_relu3", "avgpool", "flat", "fc"));
}

TEST_F(ResNet101Test, HasTheParametersOfTorchvision) {
  EXPECT_EQ(count_parameters(*model()), 44549160);
  EXPECT_EQ(count_parameters(*testing::on_meta([] { return resnet101(10); })),
            42520650);
  EXPECT_EQ(model()->parameters().size(), 314);
  int64_t buffer_elements = 0;
  for (const auto& buffer : model()->buffers()) {
    buffer_elements += buffer.numel();
  }
  EXPECT_EQ(buffer_elements, 105448);
  EXPECT_EQ(model()->parameters().size() + model()->buffers().size(), 626);
}

// The balances of torchgpipe's speed benchmark, and {140, 230} of its accuracy
// benchmark.
TEST_F(ResNet101Test, HasTheParametersOfTorchgpipesPartitions) {
  EXPECT_THAT(parameters_by(model(), {140, 230}),
              ElementsAre(7688768, 36860392));
  EXPECT_THAT(parameters_by(model(), {135, 235}),
              ElementsAre(7426112, 37123048));
  EXPECT_THAT(parameters_by(model(), {44, 92, 124, 110}),
              ElementsAre(406080, 7020032, 12551680, 24571368));
  EXPECT_THAT(parameters_by(model(), {26, 22, 33, 44, 44, 66, 66, 69}),
              ElementsAre(154944, 449792, 840192, 4864000, 4468736, 6703104,
                          6703104, 20365288));
}

// Bytes per sample at 224 x 224, for the same balances.
TEST_F(ResNet101Test, MovesTheBytesOfTorchgpipe) {
  const auto mib_of = [&](const std::vector<int64_t>& balance) {
    const auto crossings =
        crossings_of(model(), balance, testing::meta_image(224));
    return std::vector<double>{crossings.boundary / testing::kMiB,
                               crossings.skips / testing::kMiB};
  };
  EXPECT_THAT(mib_of({140, 230}), ElementsAre(0.19140625, 0.765625));
  EXPECT_THAT(mib_of({135, 235}), ElementsAre(0.765625, 0));
  EXPECT_THAT(mib_of({44, 92, 124, 110}), ElementsAre(1.33984375, 3.828125));
  EXPECT_THAT(mib_of({26, 22, 33, 44, 44, 66, 66, 69}), ElementsAre(9.1875, 0));
}

TEST_F(ResNet101Test, SkipsMatch) {
  EXPECT_NO_THROW(verify_skippables(model()));
}

// The numbers come from the same model in Python (torch 2.11.0, CPU):
// torch.manual_seed(0), torchgpipe's build_resnet([3, 4, 23, 3]), sums and
// norms of parameters as float64.
TEST_F(ResNet101Test, DrawsTheWeightsOfThePythonModel) {
  EXPECT_NEAR(sum_of(model()->parameters()), 52911.1341673, 1e-6);
  EXPECT_NEAR(sum_of_squares(model()->parameters()), 150286.818552, 1e-5);
  EXPECT_NEAR(norm_of(model(), "conv1.weight"), 2.45959109265, 1e-10);
  EXPECT_NEAR(norm_of(model(), "layer1_0_residual.downsample.0.weight"),
              11.364222884, 1e-8);
  EXPECT_NEAR(norm_of(model(), "layer4_2_conv3.weight"), 32.0072160423, 1e-9);
  EXPECT_NEAR(norm_of(model(), "fc.weight"), 18.2578355985, 1e-9);
  EXPECT_NEAR(norm_of(model(), "fc.bias"), 0.394685840719, 1e-11);
}

TEST_F(ResNet101Test, TrainsInAPlainSequential) {
  Sequential model = resnet101(10);
  EXPECT_EQ(count_parameters(*model), 42520650);
  const auto output = model->forward(torch::randn({2, 3, 64, 64}));
  EXPECT_THAT(output.sizes(), ElementsAre(2, 10));
  output.sum().backward();
  EXPECT_EQ(testing::gradients_of(model).size(), 314);
}

TEST(ResNet50Test, HasTheSizeOfTorchvisions) {
  torch::manual_seed(0);
  const Sequential model = resnet50();
  EXPECT_EQ(model->size(), 183);
  EXPECT_EQ(count_parameters(*model), 25557032);
  // From Python, as above.
  EXPECT_NEAR(sum_of(model->parameters()), 26510.0730465, 1e-6);
}

TEST(ResNetTest, GivesACloneItsOwnWeights) {
  testing::expect_clone_with_own_weights(resnet50(10),
                                         torch::randn({1, 3, 32, 32}));
}

TEST(ResNetTest, RefusesNoClasses) {
  EXPECT_THROW(resnet101(0), c10::ValueError);
}

}  // namespace
}  // namespace gpipe::models
