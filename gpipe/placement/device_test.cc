#include "gpipe/placement/device.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/rnn.h>

#include <string>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe::placement {
namespace {

TEST(Names, NearestComeFirst) {
  EXPECT_EQ(nearest_text("encodr", {"head", "decoder", "encoder"}),
            "'encoder', 'decoder' and 'head'");
  EXPECT_EQ(nearest_text("x", {}), "");
}

TEST(Names, OfEquallyNearOnesTheEarlier) {
  EXPECT_EQ(nearest_text("ac", {"ab", "ad", "xyz", "ae"}),
            "'ab', 'ad' and 'ae'");
}

TEST(Names, UpperAndLowerCaseAreTheSame) {
  EXPECT_EQ(nearest_text("CUDA", {"cpu", "cuda"}), "'cuda' and 'cpu'");
}

TEST(Names, TextOfOneTwoAndThree) {
  EXPECT_EQ(nearest_text("a", {"a"}), "'a'");
  EXPECT_EQ(nearest_text("a", {"ab", "a"}), "'a' and 'ab'");
  EXPECT_EQ(nearest_text("a", {"abc", "ab", "a", "xyz"}),
            "'a', 'ab' and 'abc'");
}

}  // namespace
}  // namespace gpipe::placement

namespace gpipe {
namespace {

using c10::Device;
using placement::existing_device;
using testing::device;
using testing::error_of;

TEST(Device, FromTextAndFromADevice) {
  EXPECT_EQ(get_device("cpu"), Device(c10::kCPU));
  EXPECT_EQ(get_device("meta"), Device(c10::kMeta));
  EXPECT_EQ(get_device("meta:3"), Device(c10::kMeta, 3));
  EXPECT_EQ(get_device("cuda"), Device(c10::kCUDA));
  EXPECT_EQ(get_device(Device(c10::kXPU)), Device(c10::kXPU));
  EXPECT_EQ(get_device(device(1).str()), device(1));
}

TEST(Device, UnknownTypesAreAnsweredWithTheNearest) {
  const std::string error = error_of([] { get_device("gpu:1"); });
  EXPECT_EQ(error.rfind("c10::ValueError: unknown type of device 'gpu' in "
                        "'gpu:1'; the nearest that LibTorch knows are 'cpu', "
                        "'xpu' and 'hpu'; this process has devices of 'cpu'",
                        0),
            0u)
      << error;
  const std::string here =
      c10::DeviceTypeName(device().type(), /*lower_case=*/true);
  EXPECT_NE(error.find("'" + here + "'", error.find("devices of")),
            std::string::npos);
  EXPECT_EQ(error_of([] { get_device("Cuda"); })
                .rfind("c10::ValueError: unknown type of device 'Cuda'; the "
                       "nearest that LibTorch knows are 'cuda', 'cpu' and "
                       "'fpga'; ",
                       0),
            0u);
}

TEST(Device, IndicesAreNumbers) {
  for (const std::string index : {"", "x", "-1", "1x", "128", "99999999999"}) {
    EXPECT_EQ(error_of([&] { get_device("cuda:" + index); }),
              "c10::ValueError: the device 'cuda:" + index +
                  "' has the index '" + index +
                  "', which must be a number from 0 to 127, as in 'cuda:0'");
  }
}

TEST(Device, IndicesBeyondTheLast) {
  EXPECT_EQ(error_of([] { get_device("cpu:1"); }),
            "c10::ValueError: there is no device cpu:1: the last one of this "
            "type is cpu:0");
  EXPECT_EQ(error_of([] { get_device("vulkan:0"); }),
            "c10::ValueError: there is no device vulkan:0: this process has "
            "none of its type");
  EXPECT_EQ(error_of([] { get_device(Device(c10::kVulkan, 1)); }),
            "c10::ValueError: there is no device vulkan:1: this process has "
            "none of its type");
  if (device().is_hpu()) {
    EXPECT_EQ(error_of([] { get_device("hpu:4"); }),
              "c10::ValueError: there is no device hpu:4: the last one of this "
              "type is hpu:3");
  }
}

TEST(Device, ExistingOnesAreWhatTensorsSay) {
  EXPECT_EQ(existing_device(Device(c10::kCPU, 0)), Device(c10::kCPU));
  EXPECT_EQ(existing_device(Device(c10::kMeta)), Device(c10::kMeta));
  EXPECT_EQ(existing_device(device(1)), device(1));
  if (!device().is_cpu()) {
    EXPECT_EQ(existing_device(Device(device().type())).index(), 0);
  }
  EXPECT_EQ(error_of([] { existing_device(Device(c10::kVulkan)); }),
            "c10::ValueError: there is no device vulkan: this process has none "
            "of its type");
}

using at::Tensor;

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
