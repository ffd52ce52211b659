#include "gpipe/libtorch/meta_scope.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gpipe/libtorch/dispatcher.h"

namespace gpipe {
namespace {

using torch::Tensor;
using Extent = MetaScope::Extent;

TEST(DispatcherTest, AKeyWithoutRegistrationsIsRefused) {
  internal::check_claimed(internal::kMetaKey);
  EXPECT_THAT(
      [] { internal::check_claimed(c10::DispatchKey::FuncTorchBatched); },
      ::testing::ThrowsMessage<c10::Error>(
          ::testing::HasSubstr("is used before main()")));
}

TEST(MetaScopeTest, SendsNewTensorsToMeta) {
  const MetaScope scope(Extent::kNewTensors);
  for (const Tensor& tensor :
       {torch::empty({2, 3}), torch::zeros({2, 3}), torch::randn({2, 3}),
        torch::full({2, 3}, 1.5), torch::arange(6).view({2, 3}),
        torch::eye(3).slice(0, 0, 2), torch::rand({2, 3}), torch::ones({2, 3}),
        at::empty({2, 3}), at::empty_strided({2, 3}, {1, 2})}) {
    EXPECT_TRUE(tensor.is_meta());
    EXPECT_EQ(tensor.sizes(), (at::IntArrayRef{2, 3}));
  }
}

TEST(MetaScopeTest, LeavesTensorsThatNameADeviceOrHaveValues) {
  const Tensor before = torch::ones({3});
  const MetaScope scope(Extent::kNewTensors);
  EXPECT_TRUE(torch::zeros({2}, at::kCPU).is_cpu());
  EXPECT_TRUE(torch::tensor({1.0, 2.0})
                  .equal(torch::tensor(
                      {1.0, 2.0}, torch::TensorOptions().device(at::kCPU))));
  EXPECT_EQ(before.sum().item<float>(), 3);
  EXPECT_TRUE(torch::empty_like(before).is_cpu());
  EXPECT_TRUE(before.new_zeros({2}).is_cpu());
}

TEST(MetaScopeTest, EndsWithTheScope) {
  { const MetaScope scope(Extent::kNewTensors); }
  EXPECT_TRUE(torch::zeros({2}).is_cpu());
  {
    const MetaScope outer(Extent::kNewTensors);
    { const MetaScope inner(Extent::kAllTensors); }
    EXPECT_TRUE(torch::zeros({2}).is_meta());
  }
  EXPECT_TRUE(torch::zeros({2}).is_cpu());
}

TEST(MetaScopeTest, IsOfItsThread) {
  const MetaScope scope(Extent::kNewTensors);
  std::thread([] { EXPECT_TRUE(torch::zeros({2}).is_cpu()); }).join();
}

TEST(MetaScopeTest, LooksAtAllTensorsAndTouchesNone) {
  Tensor real = torch::ones({3, 4});
  torch::nn::Linear linear(4, 5);
  torch::nn::BatchNorm1d norm(5);
  const Tensor weight = linear->weight.detach().clone();
  {
    const MetaScope scope(Extent::kAllTensors);
    const Tensor y = norm(linear(real));
    EXPECT_TRUE(y.is_meta());
    EXPECT_EQ(y.sizes(), (at::IntArrayRef{3, 5}));
    real.add_(1);
    EXPECT_TRUE((real + torch::ones({4}, real.options())).is_meta());
    EXPECT_TRUE(real.to(at::kCPU, at::kDouble).is_meta());
    EXPECT_TRUE(at::cat({real, real}).is_meta());
    torch::NoGradGuard no_grad;
    linear->weight.zero_();
  }
  EXPECT_TRUE(real.equal(torch::ones({3, 4})));
  EXPECT_TRUE(linear->weight.equal(weight));
  EXPECT_EQ(norm->running_mean.abs().sum().item<float>(), 0);
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
}

TEST(MetaScopeTest, KeepsTheTypesOfMixedExpressions) {
  const Tensor integers = torch::ones({3}, at::kInt);
  const Tensor half = torch::ones({3}, at::kHalf);
  const MetaScope scope(Extent::kAllTensors);
  EXPECT_EQ((integers + 1.5).dtype(), at::kFloat);
  EXPECT_EQ((integers * 2).dtype(), at::kInt);
  EXPECT_EQ((half * 2.5).dtype(), at::kHalf);
}

TEST(MetaScopeTest, AnswersWhatIsAskedOfRealTensors) {
  const Tensor real = torch::full({}, 3.0);
  const MetaScope scope(Extent::kAllTensors);
  EXPECT_EQ(real.item<double>(), 3.0);
  EXPECT_TRUE(real.equal(real));
  EXPECT_THROW((real + 1).item<double>(), c10::Error);
}

TEST(MetaScopeTest, HasOneStandInForATensor) {
  const Tensor a = torch::ones({3}), b = torch::ones({3});
  const MetaScope scope(Extent::kAllTensors);
  EXPECT_TRUE(a.view({3, 1}).is_alias_of(a.view({1, 3})));
  EXPECT_FALSE(a.view({3, 1}).is_alias_of(b.view({1, 3})));
}

}  // namespace
}  // namespace gpipe

namespace gpipe::internal {
namespace {

// ---- Tests that the shapes which meta kernels return equal those of real
// runs.

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct Case {
  std::string name;
  std::vector<std::vector<int64_t>> inputs;
  std::function<Tensors(const Tensors&)> function;
};

Tensors made_on(const Case& test, c10::DeviceType device) {
  Tensors inputs;
  for (const auto& shape : test.inputs) {
    inputs.push_back(torch::ones(shape, torch::TensorOptions().device(device))
                         .requires_grad_());
  }
  return inputs;
}

void expect_alike(const Tensor& meta, const Tensor& cpu) {
  ASSERT_EQ(meta.defined(), cpu.defined());
  if (!cpu.defined()) return;
  EXPECT_TRUE(meta.is_meta());
  EXPECT_EQ(meta.sizes(), cpu.sizes());
  EXPECT_EQ(meta.strides(), cpu.strides());
  EXPECT_EQ(meta.dtype(), cpu.dtype());
}

// LibTorch 2.13 alone has two operators that work otherwise on a CPU than on
// other devices: group_norm() keeps the format of images there, and attention
// takes a mask that is causal as well.
constexpr bool kIsLibTorch213 =
    TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13;

class MetaKernels : public ::testing::TestWithParam<Case> {};

TEST_P(MetaKernels, GiveTheShapesOfTheCpu) {
  const Case& test = GetParam();
  const Tensors meta_in = made_on(test, at::kMeta);
  const Tensors cpu_in = made_on(test, at::kCPU);
  const Tensors meta = test.function(meta_in), cpu = test.function(cpu_in);
  ASSERT_EQ(meta.size(), cpu.size());
  for (std::size_t k = 0; k < cpu.size(); ++k) {
    expect_alike(meta[k], cpu[k]);
    if (!cpu[k].requires_grad()) continue;
    meta[k].sum().backward({}, /*retain_graph=*/true);
    cpu[k].sum().backward({}, /*retain_graph=*/true);
  }
  for (std::size_t k = 0; k < cpu_in.size(); ++k) {
    expect_alike(meta_in[k].grad(), cpu_in[k].grad());
  }
}

Case convolution(const std::string& name,
                 const std::vector<std::vector<int64_t>>& inputs,
                 std::vector<int64_t> stride, std::vector<int64_t> padding,
                 std::vector<int64_t> dilation, bool transposed,
                 std::vector<int64_t> output_padding, int64_t groups) {
  return {name, inputs, [=](const Tensors& in) {
            return Tensors{at::convolution(
                in[0], in[1], in.size() > 2 ? in[2] : Tensor(), stride, padding,
                dilation, transposed, output_padding, groups)};
          }};
}

Tensor index_for(const Tensor& like, std::vector<int64_t> values) {
  return torch::tensor(values).to(like.device());
}

INSTANTIATE_TEST_SUITE_P(Exact, MetaKernels,
                         ::testing::Values(
                             convolution("Conv1d", {{2, 3, 20}, {5, 3, 4}, {5}},
                                         {3}, {1}, {2}, false, {0}, 1),
                             convolution("Conv2d",
                                         {{2, 3, 19, 14}, {6, 3, 3, 5}, {6}},
                                         {2, 1}, {1, 2}, {1, 1}, false, {0, 0},
                                         1),
                             convolution("Conv2dOfGroups",
                                         {{2, 6, 9, 9}, {4, 3, 3, 3}}, {1, 1},
                                         {0, 0}, {2, 2}, false, {0, 0}, 2),
                             convolution(
                                 "Conv3d",
                                 {{1, 2, 7, 8, 9}, {3, 2, 2, 3, 4}, {3}},
                                 {2, 2, 2}, {1, 1, 1}, {1, 1, 1}, false,
                                 {0, 0, 0}, 1),
                             convolution("ConvTranspose2d",
                                         {{2, 4, 7, 5}, {4, 3, 3, 4}, {3}},
                                         {3, 2}, {1, 0}, {1, 2}, true, {2, 1},
                                         1),
                             convolution("ConvTranspose2dOfGroups",
                                         {{2, 4, 7, 5}, {4, 3, 3, 3}}, {2, 2},
                                         {1, 1}, {1, 1}, true, {1, 1}, 2),
                             Case{"BatchNorm",
                                  {{4, 3, 5, 5}, {3}, {3}},
                                  [](const Tensors& in) {
                                    const Tensor mean =
                                        torch::zeros_like(in[1]).detach();
                                    const Tensor var =
                                        torch::ones_like(in[1]).detach();
                                    return Tensors{
                                        at::batch_norm(in[0], in[1], in[2],
                                                       mean, var, true, 0.1,
                                                       1e-5, false),
                                        at::batch_norm(in[0], in[1], in[2],
                                                       mean, var, false, 0.1,
                                                       1e-5, false)};
                                  }},
                             Case{"InstanceNorm",
                                  {{4, 3, 5, 5}},
                                  [](const Tensors& in) {
                                    return Tensors{at::instance_norm(
                                        in[0], {}, {}, {}, {}, true, 0.1, 1e-5,
                                        false)};
                                  }},
                             Case{"Relu",
                                  {{3, 4}},
                                  [](const Tensors& in) {
                                    return Tensors{in[0].relu(),
                                                   (in[0] + 1).relu_()};
                                  }},
                             Case{"Where",
                                  {{3, 1, 2}, {4, 1}, {}},
                                  [](const Tensors& in) {
                                    return Tensors{
                                        at::where(in[0] > 0, in[0], in[1]),
                                        at::where(in[0] > 0, in[1], 2.5),
                                        at::where(in[1] > 0, in[2], in[0])};
                                  }},
                             Case{
                                 "IndexSelect",
                                 {{3, 5}},
                                 [](const Tensors& in) {
                                   return Tensors{
                                       in[0].index_select(
                                           -1, index_for(in[0], {4, 0, 0, 1})),
                                       at::embedding(
                                           in[0], index_for(in[0], {2, 0, 1, 1})
                                                      .view({2, 2}))};
                                 }}),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Further, MetaKernels,
    ::testing::Values(
        Case{"AdaptivePool",
             {{2, 3, 9, 11}},
             [](const Tensors& in) {
               return Tensors{at::adaptive_avg_pool2d(in[0], {4, 3})};
             }},
        Case{"Attention",
             {{2, 4, 6, 8}},
             [](const Tensors& in) {
               return Tensors{at::scaled_dot_product_attention(
                   in[0], in[0], in[0], {}, 0.0, true)};
             }},
        Case{"Dropout",
             {{4, 5}},
             [](const Tensors& in) {
               return Tensors{at::dropout(in[0], 0.5, true),
                              at::feature_dropout(in[0], 0.5, true)};
             }},
        Case{"Losses",
             {{4, 5}},
             [](const Tensors& in) {
               const Tensor labels = index_for(in[0], {0, 4, 2, 2});
               return Tensors{
                   F::cross_entropy(in[0], labels),
                   at::mse_loss(in[0], in[0] * 2),
                   at::binary_cross_entropy_with_logits(in[0], in[0].detach())};
             }},
        Case{"Norms",
             {{4, 6, 3}, {6}, {3}},
             [](const Tensors& in) {
               return Tensors{at::layer_norm(in[0], {3}, in[2], in[2]),
                              at::layer_norm(in[0].transpose(0, 1), {4, 3}),
                              at::group_norm(in[0], 2, in[1], in[1]),
                              at::group_norm(in[0].transpose(0, 2), 3)};
             }},
        Case{"PermutedInputs",
             {{2, 3, 4}, {4}, {2, 4, 3, 5}},
             [](const Tensors& in) {
               const Tensor turned = in[0].transpose(1, 2);
               const Tensor image =
                   in[2].contiguous(at::MemoryFormat::ChannelsLast);
               const Tensor mean = torch::zeros_like(in[1]).detach();
               const auto norm = [&](const Tensor& x) {
                 return at::batch_norm(x, in[1], in[1], mean, mean + 1, true,
                                       0.1, 1e-5, false);
               };
               return Tensors{norm(turned),
                              norm(image),
                              norm(in[2].permute({3, 1, 2, 0})),
                              at::where(turned > 0, turned, turned * 2),
                              at::where(image > 0, image, 0.5),
                              at::layer_norm(turned, {3}),
                              at::adaptive_avg_pool2d(image, {2, 2})};
             }},
        Case{"NormsOfImages",
             {{2, 4, 3, 5}, {4}},
             [](const Tensors& in) {
               const Tensor image =
                   in[0].contiguous(at::MemoryFormat::ChannelsLast);
               const Tensor grouped = at::group_norm(image, 2, in[1], in[1]);
               return Tensors{kIsLibTorch213 ? grouped.contiguous() : grouped,
                              at::layer_norm(image, {3, 5})};
             }},
        Case{"Activations",
             {{4, 6}},
             [](const Tensors& in) {
               return Tensors{at::hardtanh(in[0]), at::hardswish(in[0]),
                              at::glu(in[0]),      at::log_sigmoid(in[0]),
                              at::gelu(in[0]),     at::mish(in[0])};
             }},
        Case{"SeveralResults",
             {{4, 6}},
             [](const Tensors& in) {
               const auto [value, index] = in[0].median(1);
               const auto [var, mean] = at::var_mean(in[0], {0}, true);
               return Tensors{value, index, var, mean, in[0].max()};
             }},
        Case{"Outputs",
             {{4, 6}},
             [](const Tensors& in) {
               Tensor out = torch::empty({0}, in[0].options());
               at::floor_divide_out(out, in[0].detach(), in[0].detach());
               return Tensors{out};
             }},
        Case{"GridSample",
             {{2, 3, 5, 5}, {2, 4, 6, 2}},
             [](const Tensors& in) {
               return Tensors{at::grid_sampler(in[0], in[1], 0, 0, false)};
             }},
        Case{"Recurrent",
             {{3, 2, 5}, {1, 2, 4}, {16, 5}, {16, 4}},
             [](const Tensors& in) {
               const auto [all, h, c] =
                   at::lstm(in[0], {in[1], in[1]}, {in[2], in[3]}, false, 1,
                            0.0, true, false, false);
               return Tensors{all, h, c};
             }}),
    [](const auto& info) { return info.param.name; });

// Attention of query, key, value and maybe a mask.
Case attention(const std::string& name,
               const std::vector<std::vector<int64_t>>& inputs,
               bool grouped = false) {
  return {name, inputs, [=](const Tensors& in) {
            std::optional<Tensor> mask;
            if (in.size() > 3) mask = in[3].detach();
            return Tensors{at::scaled_dot_product_attention(
                in[0], in[1], in[2], mask, 0.0, false, {}, grouped)};
          }};
}

// Some are fused on a CPU; which ones depends on the LibTorch version.
INSTANTIATE_TEST_SUITE_P(
    Attention, MetaKernels,
    ::testing::Values(
        attention("Plain", {{2, 4, 3, 8}, {2, 4, 6, 8}, {2, 4, 6, 8}}),
        attention("OneQuery", {{1, 2, 3, 4}, {5, 2, 6, 4}, {5, 2, 6, 4}}),
        attention("OneKey", {{5, 2, 3, 4}, {1, 2, 6, 4}, {1, 2, 6, 4}}),
        attention("OneHeadOfValues",
                  {{5, 2, 3, 4}, {5, 2, 6, 4}, {5, 1, 6, 4}}),
        Case{"OneHeadOfKeysAndValues",
             {{5, 2, 3, 4}, {5, 1, 6, 4}},
             [](const Tensors& in) {
               const Tensor key = in[1].detach();
               return Tensors{
                   at::scaled_dot_product_attention(in[0], key, key)};
             }},
        attention("GroupedHeads", {{2, 4, 3, 8}, {2, 2, 6, 8}, {2, 2, 6, 8}},
                  /*grouped=*/true),
        attention("NarrowValues", {{5, 2, 3, 4}, {5, 2, 6, 4}, {5, 2, 6, 3}}),
        attention("Unbatched", {{2, 3, 4}, {2, 6, 4}, {2, 6, 4}, {3, 6}}),
        attention("OneHead", {{3, 4}, {6, 4}, {6, 4}}),
        attention("Mask", {{2, 2, 3, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, {3, 6}}),
        attention("MaskOfHeads",
                  {{2, 2, 3, 4}, {2, 2, 6, 4}, {2, 2, 6, 4}, {2, 3, 6}}),
        attention("MaskOfAllBatches",
                  {{1, 2, 3, 4}, {5, 2, 6, 4}, {5, 2, 6, 4}, {5, 1, 3, 6}}),
        attention("MaskOfGroupedHeads",
                  {{2, 4, 3, 8}, {2, 2, 6, 8}, {2, 2, 6, 8}, {4, 3, 6}},
                  /*grouped=*/true)),
    [](const auto& info) { return info.param.name; });

TEST(MetaKernelsTest, RefuseTheMasksThatTheCpuRefuses) {
  for (const auto device : {at::kCPU, at::kMeta}) {
    const auto options = torch::TensorOptions().device(device);
    const auto attend = [&](const Tensor& mask) {
      const Tensor x = torch::ones({1, 1, 6, 4}, options);
      return at::scaled_dot_product_attention(x, x, x, mask);
    };
    EXPECT_THROW(attend(torch::ones({5, 1, 6, 6}, options)), c10::Error);
    EXPECT_THROW(attend(torch::ones({1, 7, 6, 6}, options)), c10::Error);
    EXPECT_THROW(attend(torch::ones({6, 5}, options)), c10::Error);
    EXPECT_THROW(attend(torch::ones({6, 6}, options.dtype(at::kDouble))),
                 c10::Error);
    EXPECT_THROW(attend(torch::ones({6, 6}, options.dtype(at::kInt))),
                 c10::Error);
  }
}

TEST(MetaKernelsTest, RefuseWhatTheCpuRefuses) {
  for (const auto device : {at::kCPU, at::kMeta}) {
    const auto options = torch::TensorOptions().device(device);
    const Tensor x = torch::ones({4, 6, 3}, options);
    EXPECT_THROW(at::where(x, x, x), c10::Error);
    EXPECT_THROW(at::index_select(x, 0, x[0][0]), c10::Error);
    EXPECT_THROW(at::adaptive_avg_pool2d(x[0], {2, 2}), c10::Error);
    const Tensor q = torch::ones({1, 1, 6, 4}, options);
    if (!kIsLibTorch213 || device == at::kMeta) {
      EXPECT_THROW(at::scaled_dot_product_attention(
                       q, q, q, torch::ones({6, 6}, options), 0.0, true),
                   c10::Error);
    }
    EXPECT_THROW(at::scaled_dot_product_attention(q, q.to(at::kDouble), q),
                 c10::Error);
    EXPECT_THROW(at::layer_norm(x, {6}), c10::Error);
    EXPECT_THROW(at::layer_norm(x, {3}, torch::ones({6}, options)), c10::Error);
    EXPECT_THROW(at::group_norm(x, 4), c10::Error);
  }
}

TEST(MetaKernelsTest, TakeScalarsOfTheCpu) {
  const Tensor x = torch::ones({4, 3}, at::kMeta);
  const Tensor zero = torch::tensor(0.0), yes = torch::tensor(true);
  for (const Tensor& y :
       {at::where(x > 0, x, zero), at::where(x > 0, zero, torch::tensor(-1.0)),
        at::where(yes, x, zero)}) {
    EXPECT_TRUE(y.is_meta());
    EXPECT_EQ(y.sizes(), x.sizes());
    EXPECT_EQ(y.dtype(), at::kFloat);
  }
  EXPECT_THROW(at::where(x > 0, x, torch::ones({4, 3})), c10::Error);
}

TEST(MetaKernelsTest, CreateTensorsOnADeviceWithAnIndex) {
  using Create = std::function<Tensor(const torch::TensorOptions&)>;
  const std::vector<Create> creates = {
      [](auto& options) { return at::linspace(0, 1, 5, options); },
      [](auto& options) {
        return at::linspace(at::ones({}, options), 2, 5, options);
      },
      [](auto& options) { return at::logspace(0, 1, 5, 10, options); },
      [](auto& options) { return at::range(0, 4, options); },
      [](auto& options) { return at::range(0, 4, 2, options); },
      [](auto& options) { return at::bartlett_window(5, options); },
      [](auto& options) { return at::blackman_window(5, options); },
      [](auto& options) { return at::hann_window(5, options); },
      [](auto& options) { return at::hann_window(5, false, options); },
      [](auto& options) { return at::hamming_window(5, true, 0.5, options); },
      [](auto& options) { return at::kaiser_window(5, options); },
      [](auto& options) { return at::fft_fftfreq(5, 0.1, options); },
      [](auto& options) { return at::fft_rfftfreq(5, 0.1, options); },
      [](auto& options) { return at::arange(5, options); },
      [](auto& options) { return at::eye(5, options); },
      [](auto& options) {
        return at::affine_grid_generator(at::ones({1, 2, 3}, options),
                                         {1, 1, 2, 4}, false);
      },
  };
  for (const Create& create : creates) {
    const Tensor cpu = create(torch::TensorOptions(torch::kDouble));
    for (const int index : {0, 1}) {
      const c10::Device device(c10::kMeta,
                               static_cast<c10::DeviceIndex>(index));
      const c10::DeviceGuard guard(device);
      const Tensor meta =
          create(torch::TensorOptions(torch::kDouble).device(device));
      expect_alike(meta, cpu);
      EXPECT_EQ(meta.device(), device);
    }
  }
}

TEST(MetaKernelsTest, KeepChannelsLast) {
  using Use = std::function<Tensor(const Tensor& x, const Tensor& weight)>;
  const std::vector<Use> uses = {
      [](auto& x, auto& weight) { return at::conv2d(x, weight); },
      [](auto& x, auto& weight) {
        return at::convolution(x, weight, {}, {2, 2}, {1, 1}, {1, 1}, false,
                               {0, 0}, 1);
      },
      [](auto& x, auto& weight) {
        return at::conv2d(x, weight.narrow(2, 0, 1).narrow(3, 0, 1));
      },
      [](auto& x, auto& weight) { return at::conv_transpose2d(x, weight); },
      [](auto& x, auto& weight) {
        return at::convolution(x, weight.narrow(1, 0, 1), {}, {1, 1}, {0, 0},
                               {1, 1}, false, {0, 0}, 8);
      },
      [](auto& x, auto&) {
        return at::adaptive_avg_pool2d(x, {3, 2});
      },
      [](auto& x, auto&) { return at::pixel_shuffle(x, 2); },
      [](auto& x, auto&) { return at::pixel_unshuffle(x, 2); },
  };
  for (const Use& use : uses) {
    for (const auto type : {at::kFloat, at::kDouble}) {
      for (const auto format :
           {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        const auto run = [&](c10::DeviceType device) {
          const auto options = torch::TensorOptions(type).device(device);
          const Tensor x = at::ones({2, 8, 6, 8}, options)
                               .contiguous(format)
                               .requires_grad_();
          const Tensor weight = at::ones({8, 8, 3, 3}, options);
          const Tensor y = use(x, weight);
          return Tensors{y, torch::autograd::grad({y.sum()}, {x})[0]};
        };
        const Tensors meta = run(at::kMeta), cpu = run(at::kCPU);
        for (std::size_t k = 0; k < cpu.size(); ++k) {
          expect_alike(meta[k], cpu[k]);
        }
      }
    }
  }
}

TEST(MetaKernelsTest, DrawNoNumbersOfTheProgram) {
  const Tensor x = torch::ones({4, 5}, at::kMeta);
  torch::manual_seed(1);
  const Tensor expected = torch::rand({3});
  torch::manual_seed(1);
  at::dropout(x, 0.5, true);
  at::poisson(x);
  at::rrelu(x, 0.1, 0.2, true);
  EXPECT_TRUE(torch::rand({3}).equal(expected));
}

TEST(MetaKernelsTest, LeaveWhatDependsOnValuesToLibTorch) {
  const Tensor x = torch::ones({4}, at::kMeta);
  EXPECT_THROW(x.nonzero(), c10::Error);
  EXPECT_THROW(x.sum().item<float>(), c10::Error);
}

TEST(MetaKernelsTest, KeepStatisticsOfHalfPrecisionInFloat) {
  const Tensor x = torch::ones(
      {4, 3, 2}, torch::TensorOptions().device(at::kMeta).dtype(at::kBFloat16));
  const auto [y, mean, deviation] =
      at::native_batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5);
  EXPECT_EQ(y.dtype(), at::kBFloat16);
  EXPECT_EQ(mean.dtype(), at::kFloat);
  EXPECT_EQ(deviation.dtype(), at::kFloat);
}

// ---- Tests of operators that depend on values, which meta tensors do not
// have.

using at::Tensor;

Tensor meta_of(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::empty(sizes, at::TensorOptions(dtype).device(at::kMeta));
}

TEST(MetaValues, AreEqualForTheSameMemory) {
  const Tensor x = meta_of({2, 3});
  EXPECT_TRUE(x.equal(x));
  EXPECT_TRUE(x.equal(x.view({2, 3})));
  EXPECT_FALSE(x.equal(x.view({3, 2})));
  EXPECT_FALSE(x[0].equal(x[1]));
  EXPECT_FALSE(x.equal(meta_of({2, 3})));
}

TEST(MetaValues, CannotBeRead) {
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [] { meta_of({}).item<float>(); },
           [] { meta_of({3}).sum().item<double>(); },
           [] { meta_of({1}).is_nonzero(); },
           [] { meta_of({2}).allclose(meta_of({2})); }}) {
    EXPECT_THAT(call, ::testing::ThrowsMessage<c10::NotImplementedError>(
                          ::testing::HasSubstr("item(): reads a value, and")));
  }
}

TEST(MetaValues, DoNotDecideAboutTheShapeOfRandomIndices) {
  EXPECT_EQ(meta_of({5}).multinomial(3).sizes(), at::IntArrayRef({3}));
  const Tensor rows = meta_of({2, 5}).multinomial(3, /*replacement=*/true);
  EXPECT_EQ(rows.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_EQ(rows.scalar_type(), at::kLong);
  EXPECT_TRUE(rows.is_meta());
}

TEST(MetaValues, ThatDecideAboutShapesAreErrors) {
  const Tensor x = meta_of({2, 3});
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { x.nonzero(); }, [&] { at::masked_select(x, x.gt(0)); },
           [&] { at::_unique2(x); }, [&] { at::unique_dim(x, 0); },
           [&] { at::unique_consecutive(x); }, [&] { x.index({x.gt(0)}); },
           [&] { at::argwhere(x); },
           [&] { at::bincount(meta_of({3}, at::kLong)); },
           [&] { at::repeat_interleave(meta_of({3}, at::kLong)); }}) {
    EXPECT_THAT(
        call,
        ::testing::ThrowsMessage<c10::NotImplementedError>(
            ::testing::HasSubstr("the shape of the result depends on values")));
  }
}

}  // namespace
}  // namespace gpipe::internal
