// Tests that all layers of LibTorch can be recomputed, adapted and summarized.
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/first_output.h"
#include "gpipe/recomputed.h"
#include "gpipe/summary.h"

namespace gpipe {
namespace {

using namespace torch::nn;  // NOLINT: all of its layers
using torch::Tensor;

std::vector<Tensor> flat(const Tensor& tensor) { return {tensor}; }
template <typename... T>
std::vector<Tensor> flat(const std::tuple<T...>& values) {
  return std::apply(
      [](const auto&... each) {
        std::vector<Tensor> all;
        for (const auto& part : {flat(each)...}) {
          all.insert(all.end(), part.begin(), part.end());
        }
        return all;
      },
      values);
}

// Returns the outputs of a call and the gradient of the first input.
template <typename Layer, typename... Inputs>
std::vector<Tensor> results(Layer& layer, Inputs... inputs) {
  for (Tensor* each : {&inputs...}) *each = each->detach().clone();
  Tensor& first = *std::array{&inputs...}[0];
  first.requires_grad_(first.is_floating_point());
  torch::manual_seed(1);  // for layers that are random even in evaluation
  std::vector<Tensor> all = flat(layer->forward(inputs...));
  Tensor sum;
  for (const Tensor& each : all) {
    if (!each.requires_grad()) continue;
    const Tensor more = (each * each.detach()).sum();
    sum = sum.defined() ? sum + more : more;
  }
  if (sum.defined()) sum.backward();
  all.push_back(first.grad());
  return all;
}

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                  const std::string& name) {
  ASSERT_EQ(a.size(), b.size()) << name;
  for (std::size_t k = 0; k < a.size(); ++k) {
    ASSERT_EQ(a[k].defined(), b[k].defined()) << name << " " << k;
    if (a[k].defined()) {
      EXPECT_TRUE(a[k].equal(b[k])) << name << " " << k;
    }
  }
}

// Checks a recomputed layer that is called directly.
template <typename Layer, typename... Inputs>
void recompute(Layer layer, Inputs... inputs) {
  layer->eval();
  Recomputed<Layer> again(layer);
  expect_equal(results(again, inputs...), results(layer, inputs...),
               layer->name());
}

// Checks a layer with one input.
template <typename Layer>
void check(Layer layer, const Tensor& input) {
  recompute(layer, input);
  const std::vector<Tensor> expected = results(layer, input);
  Sequential first(first_output(layer));
  expect_equal({results(first, input)[0]}, {expected[0]}, layer->name());
  Sequential again(Recomputed(first_output(layer)));
  expect_equal({results(again, input)[0]}, {expected[0]}, layer->name());
  const Summary shown = summary(first, input);
  EXPECT_EQ(shown.layers[0].outputs[0].sizes, expected[0].sizes().vec())
      << layer->name();
}

Tensor ramp(at::IntArrayRef sizes) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return torch::arange(count).to(torch::kFloat).sin().view(sizes);
}

TEST(LibTorchLayers, Activations) {
  const Tensor x = ramp({2, 4, 3, 3});
  check(ELU(), x);
  check(SELU(), x);
  check(CELU(), x);
  check(GELU(), x);
  check(GLU(1), x);
  check(SiLU(), x);
  check(Mish(), x);
  check(ReLU(), x);
  check(ReLU6(), x);
  check(RReLU(), x);
  check(PReLU(), x);
  check(LeakyReLU(), x);
  check(Sigmoid(), x);
  check(LogSigmoid(), x);
  check(Softmax(1), x);
  check(Softmin(1), x);
  check(LogSoftmax(1), x);
  check(Softmax2d(), x);
  check(Softplus(), x);
  check(Softshrink(), x);
  check(Softsign(), x);
  check(Hardshrink(), x);
  check(Hardtanh(), x);
  check(Tanh(), x);
  check(Tanhshrink(), x);
  check(Threshold(0.1, 0.5), x);
}

TEST(LibTorchLayers, Convolutions) {
  check(Conv1d(Conv1dOptions(3, 4, 3)), ramp({2, 3, 7}));
  check(Conv2d(Conv2dOptions(3, 4, 3)), ramp({2, 3, 7, 7}));
  check(Conv3d(Conv3dOptions(3, 4, 3)), ramp({2, 3, 5, 5, 5}));
  check(ConvTranspose1d(ConvTranspose1dOptions(3, 4, 3)), ramp({2, 3, 7}));
  check(ConvTranspose2d(ConvTranspose2dOptions(3, 4, 3)), ramp({2, 3, 7, 7}));
  check(ConvTranspose3d(ConvTranspose3dOptions(3, 4, 3)),
        ramp({2, 3, 4, 4, 4}));
  check(Unfold(UnfoldOptions(2)), ramp({2, 3, 4, 4}));
  check(Fold(FoldOptions({3, 3}, 2)), ramp({2, 8, 4}));
}

TEST(LibTorchLayers, LinearAndShapes) {
  const Tensor x = ramp({2, 4, 4, 4});
  check(Identity(), x);
  check(Linear(4, 3), x);
  check(Flatten(), x);
  check(Unflatten(UnflattenOptions(1, {2, 2})), x);
  check(PixelShuffle(2), x);
  check(PixelUnshuffle(2), x);
  check(Upsample(UpsampleOptions().scale_factor(std::vector<double>{2, 2})), x);
  check(Dropout(), x);
  check(Dropout2d(), x);
  check(Dropout3d(), ramp({2, 4, 2, 2, 2}));
  check(AlphaDropout(), x);
  check(FeatureAlphaDropout(), x);
  recompute(Bilinear(4, 4, 3), ramp({2, 4}), ramp({2, 4}));
  recompute(CosineSimilarity(), ramp({2, 4}), ramp({2, 4}).cos());
  recompute(PairwiseDistance(), ramp({2, 4}), ramp({2, 4}).cos());
}

TEST(LibTorchLayers, Pools) {
  const Tensor x1 = ramp({2, 3, 8}), x2 = ramp({2, 3, 8, 8}),
               x3 = ramp({2, 3, 4, 4, 4});
  check(AvgPool1d(2), x1);
  check(AvgPool2d(2), x2);
  check(AvgPool3d(2), x3);
  check(MaxPool1d(2), x1);
  check(MaxPool2d(2), x2);
  check(MaxPool3d(2), x3);
  check(AdaptiveAvgPool1d(2), x1);
  check(AdaptiveAvgPool2d(2), x2);
  check(AdaptiveAvgPool3d(2), x3);
  check(AdaptiveMaxPool1d(2), x1);
  check(AdaptiveMaxPool2d(2), x2);
  check(AdaptiveMaxPool3d(2), x3);
  check(LPPool1d(LPPool1dOptions(2, 2)), x1);
  check(LPPool2d(LPPool2dOptions(2, 2)), x2);
  check(LPPool3d(LPPool3dOptions(2, 2)), x3);
  check(FractionalMaxPool2d(FractionalMaxPool2dOptions(2).output_size(3)), x2);
  check(FractionalMaxPool3d(FractionalMaxPool3dOptions(2).output_size(2)), x3);
  MaxPool1d pool1(2);
  MaxPool2d pool2(2);
  MaxPool3d pool3(2);
  const auto [y1, i1] = pool1->forward_with_indices(x1);
  const auto [y2, i2] = pool2->forward_with_indices(x2);
  const auto [y3, i3] = pool3->forward_with_indices(x3);
  recompute(MaxUnpool1d(2), y1, i1);
  recompute(MaxUnpool2d(2), y2, i2);
  recompute(MaxUnpool3d(2), y3, i3);
}

TEST(LibTorchLayers, Pads) {
  const Tensor x1 = ramp({2, 3, 8}), x2 = ramp({2, 3, 4, 4}),
               x3 = ramp({2, 3, 4, 4, 4});
  check(ReflectionPad1d(1), x1);
  check(ReflectionPad2d(1), x2);
  check(ReflectionPad3d(1), x3);
  check(ReplicationPad1d(1), x1);
  check(ReplicationPad2d(1), x2);
  check(ReplicationPad3d(1), x3);
  check(ZeroPad1d(1), x1);
  check(ZeroPad2d(1), x2);
  check(ZeroPad3d(1), x3);
  check(ConstantPad1d(1, 2.5), x1);
  check(ConstantPad2d(1, 2.5), x2);
  check(ConstantPad3d(1, 2.5), x3);
}

TEST(LibTorchLayers, Norms) {
  const Tensor x1 = ramp({2, 4, 8}), x2 = ramp({2, 4, 4, 4}),
               x3 = ramp({2, 4, 4, 4, 4});
  check(BatchNorm1d(4), x1);
  check(BatchNorm2d(4), x2);
  check(BatchNorm3d(4), x3);
  check(InstanceNorm1d(InstanceNorm1dOptions(4).track_running_stats(true)), x1);
  check(InstanceNorm2d(InstanceNorm2dOptions(4).track_running_stats(true)), x2);
  check(InstanceNorm3d(InstanceNorm3dOptions(4).track_running_stats(true)), x3);
  check(LayerNorm(LayerNormOptions({8})), x1);
  check(GroupNorm(GroupNormOptions(2, 4)), x2);
  check(LocalResponseNorm(LocalResponseNormOptions(2)), x2);
  check(CrossMapLRN2d(3), x2);
}

TEST(LibTorchLayers, Sequences) {
  const Tensor x = ramp({5, 2, 8});
  const Tensor ids = torch::tensor({{1, 2}, {3, 0}});
  check(Embedding(4, 3), ids);
  check(EmbeddingBag(4, 3), ids);
  check(RNN(8, 4), x);
  check(GRU(8, 4), x);
  check(RNNCell(8, 4), x[0]);
  check(GRUCell(8, 4), x[0]);
  recompute(RNN(8, 4), x, ramp({1, 2, 4}));
  recompute(GRU(8, 4), x, ramp({1, 2, 4}));
  // The output of an LSTM is a tuple in a tuple.
  for (Sequential first : {Sequential(first_output(LSTM(8, 4))),
                           Sequential(first_output(LSTMCell(8, 4)))}) {
    const Tensor in = first->named_children().values()[0]->name().find(
                          "Cell") == std::string::npos
                          ? x
                          : x[0];
    EXPECT_EQ(summary(first, in).layers[0].outputs[0].sizes,
              first->forward(in).sizes().vec());
  }
}

TEST(LibTorchLayers, Attention) {
  const Tensor x = ramp({5, 2, 8}), memory = ramp({3, 2, 8}).cos();
  const Tensor padding = torch::zeros({2, 5}, torch::kBool);
  const Tensor mask = torch::zeros({5, 5});
  const MultiheadAttention attention(8, 2);
  recompute(attention, x, x, x);
  recompute(attention, x, x, x, padding);
  const TransformerEncoderLayer encoder(
      TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
  const TransformerDecoderLayer decoder(
      TransformerDecoderLayerOptions(8, 2).dim_feedforward(16));
  check(encoder, x);
  check(TransformerEncoder(encoder, 2), x);
  recompute(encoder, x, mask);
  recompute(encoder, x, mask, padding);
  recompute(decoder, x, memory);
  recompute(decoder, x, memory, mask);
  recompute(TransformerDecoder(decoder, 2), x, memory);
  recompute(Transformer(TransformerOptions(8, 2, 1, 1).dim_feedforward(16)),
            memory, x);
}

TEST(LibTorchLayers, Losses) {
  const Tensor x = ramp({4, 3}), y = ramp({4, 3}).cos();
  const Tensor one = torch::ones({4}), classes = torch::tensor({0, 2, 1, 0});
  recompute(L1Loss(), x, y);
  recompute(MSELoss(), x, y);
  recompute(SmoothL1Loss(), x, y);
  recompute(HuberLoss(), x, y);
  recompute(KLDivLoss(), x, y.abs());
  recompute(BCELoss(), x.sigmoid(), y.sigmoid());
  recompute(BCEWithLogitsLoss(), x, y.sigmoid());
  recompute(SoftMarginLoss(), x, y.sign());
  recompute(HingeEmbeddingLoss(), x, y.sign());
  recompute(PoissonNLLLoss(), x, y.abs());
  recompute(MultiLabelSoftMarginLoss(), x, y.gt(0).to(torch::kFloat));
  recompute(CrossEntropyLoss(), x, classes);
  recompute(NLLLoss(), x, classes);
  recompute(MultiMarginLoss(), x, classes);
  recompute(MultiLabelMarginLoss(), x,
            torch::tensor({{0, -1, 0}}).expand({4, 3}).contiguous());
  recompute(CosineEmbeddingLoss(), x, y, one);
  recompute(MarginRankingLoss(), x, y, torch::ones({4, 3}));
  recompute(TripletMarginLoss(), x, y, x.cos());
  recompute(TripletMarginWithDistanceLoss(), x, y, x.cos());
}

// ---- Layers of the user

struct ScaledImpl : Module {
  Tensor forward(const Tensor& x, Tensor scale = torch::full({1}, 3.0),
                 double more = 2) {
    return (x * scale * more).exp();
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, AnyValue(torch::full({1}, 3.0))},
                           {2, AnyValue(2.0)})
};
TORCH_MODULE(Scaled);

TEST(LibTorchLayers, DefaultsOfTheUserHold) {
  const Tensor x = ramp({2, 3});
  check(Scaled(), x);
  recompute(Scaled(), x, torch::full({1}, 2.0));
  Sequential plain{Scaled()}, again{Recomputed(Scaled())};
  EXPECT_TRUE(again->forward(x).equal((x * 6).exp()));
  EXPECT_TRUE(again->forward(x, torch::full({1}, 2.0)).equal((x * 4).exp()));
  EXPECT_TRUE(plain->forward(x).equal(again->forward(x)));
}

}  // namespace
}  // namespace gpipe
