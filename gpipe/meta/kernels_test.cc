// Tests that the shapes which meta kernels return equal those of real runs.
#include "gpipe/meta/kernels.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/functional.h>
#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

namespace gpipe::internal {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

[[maybe_unused]] const bool linked = (link_meta_kernels(), true);

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
                              at::group_norm(in[0], 2, in[1], in[1])};
             }},
        Case{"Activations",
             {{4, 6}},
             [](const Tensors& in) {
               return Tensors{at::hardtanh(in[0]), at::hardswish(in[0]),
                              at::glu(in[0]), at::log_sigmoid(in[0]),
                              at::gelu(in[0])};
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

}  // namespace
}  // namespace gpipe::internal
