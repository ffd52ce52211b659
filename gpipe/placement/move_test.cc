#include "gpipe/placement/move.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/rnn.h>

#include <string>

#include "gpipe/testing/devices.h"

namespace gpipe {
namespace {

using at::Tensor;
using testing::device;

Tensor one() { return at::ones({2}); }

TEST(Move, Tensors) {
  const Tensor x = one();
  const Tensor y = move_to_device(x, device(1));
  EXPECT_EQ(y.device(), device(1));
  EXPECT_TRUE(y.cpu().equal(x));
  EXPECT_TRUE(move_to_device(y, device(1)).is_same(y)) << "no copy";
  EXPECT_FALSE(move_to_device(Tensor(), device(1)).defined());
}

TEST(Move, NestedContainers) {
  using Map = std::map<std::string, std::vector<std::optional<Tensor>>>;
  using Data = std::tuple<Tensor, Map, std::pair<int, std::string>,
                          std::unordered_map<int, std::array<Tensor, 2>>>;
  const Data data{one(),
                  {{"a", {one(), std::nullopt, Tensor()}}, {"b", {}}},
                  {7, "seven"},
                  {{3, {one(), one()}}}};
  const Data moved = move_to_device(data, device(2));
  EXPECT_EQ(std::get<0>(moved).device(), device(2));
  const auto& a = std::get<1>(moved).at("a");
  ASSERT_EQ(a.size(), 3u);
  EXPECT_EQ(a[0]->device(), device(2));
  EXPECT_FALSE(a[1].has_value());
  EXPECT_FALSE(a[2]->defined());
  EXPECT_TRUE(std::get<1>(moved).at("b").empty());
  EXPECT_EQ(std::get<2>(moved), std::make_pair(7, std::string("seven")));
  EXPECT_EQ(std::get<3>(moved).at(3)[1].device(), device(2));
  EXPECT_EQ(std::get<0>(data).device(), at::Device(at::kCPU)) << "unchanged";
}

TEST(Move, WhatCanMoveItself) {
  namespace rnn = torch::nn::utils::rnn;
  const auto packed =
      rnn::pack_padded_sequence(at::ones({2, 1, 3}), at::ones({1}, at::kLong));
  EXPECT_EQ(move_to_device(packed, device(1)).data().device(), device(1));
}

TEST(Move, WhatIsNoTensorStays) {
  EXPECT_EQ(move_to_device(5, device(1)), 5);
  EXPECT_EQ(move_to_device(std::vector<bool>{true, false}, device(1)),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(move_to_device(std::string("x"), device(1)), "x");
}

TEST(Move, GradientsComeBack) {
  const Tensor x = one().requires_grad_();
  const auto moved = move_to_device(std::vector<Tensor>{x, x}, device(1));
  (moved[0] * moved[1]).sum().backward();
  EXPECT_EQ(x.grad().device(), x.device());
  EXPECT_TRUE(x.grad().equal(2 * one()));
}

}  // namespace
}  // namespace gpipe
