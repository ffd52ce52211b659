#include "gpipe/runtime/cell/layer.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <stdexcept>
#include <tuple>
#include <vector>

#include "gpipe/testing/errors.h"
#include "gpipe/testing/layers.h"

namespace gpipe::internal {
namespace {

using testing::error_of;
using testing::layer;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
namespace nn = torch::nn;

Tensors counted(int64_t count) {
  Tensors tensors;
  for (int64_t k = 0; k < count; ++k) tensors.push_back(torch::full({1}, k));
  return tensors;
}

TEST(CallLayer, PassesATensorAndAVector) {
  auto twice = layer([](const Tensor& x) { return x * 2; });
  const Value tensor = call_layer(twice, Value::wrap(torch::ones({2})));
  EXPECT_EQ(tensor.kind(), Value::Kind::kTensor);
  EXPECT_TRUE(tensor.tensors()[0].equal(torch::full({2}, 2.f)));

  auto reverse = layer<Tensors, Tensors>(
      [](Tensors x) { return Tensors(x.rbegin(), x.rend()); });
  const Tensors all = counted(3);
  const Value vector = call_layer(reverse, Value::wrap(all));
  EXPECT_EQ(vector.kind(), Value::Kind::kVector);
  ASSERT_EQ(vector.tensors().size(), 3u);
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_TRUE(vector.tensors()[k].is_same(all[2 - k]));
  }
}

TEST(CallLayer, TheOutputMayHaveAnotherTypeThanTheInput) {
  auto split = layer<std::tuple<Tensor, Tensor>>(
      [](const Tensor& x) { return std::make_tuple(x, x + 1); });
  auto join = layer<Tensor, std::tuple<Tensor, Tensor>>(
      [](std::tuple<Tensor, Tensor> x) {
        return std::get<0>(x) * 10 + std::get<1>(x);
      });
  Value value = call_layer(split, Value::wrap(torch::full({1}, 3.f)));
  EXPECT_EQ(value.describe(), "a tuple of 2 tensors");
  value = call_layer(join, std::move(value));
  EXPECT_EQ(value.tensors()[0].item<float>(), 34);
}

TEST(CallLayer, RefusesOutputsThatAreNotTensors) {
  auto number = layer<int>([](const Tensor&) { return 3; });
  const std::string error =
      error_of([&] { call_layer(number, Value::wrap(torch::ones({1}))); });
  EXPECT_EQ(error.find("c10::TypeError: a layer must return a torch::Tensor, a "
                       "std::vector<torch::Tensor> or a std::tuple of 1 to 8 "
                       "torch::Tensor, but "),
            0u)
      << error;
  EXPECT_NE(error.find(" returned int; if only its first tensor is needed, use "
                       "gpipe::first_output(layer) (gpipe/first_output.h)"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace gpipe::internal
