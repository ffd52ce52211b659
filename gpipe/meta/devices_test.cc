#include "gpipe/meta/devices.h"

#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <stdexcept>
#include <thread>

#include "gpipe/meta/ledger.h"

namespace gpipe::internal {
namespace {

using torch::Tensor;

c10::Device meta(int index) {
  return {c10::kMeta, static_cast<c10::DeviceIndex>(index)};
}

TEST(MetaDevicesTest, ThereIsOneWithoutIndexUnlessAGuardSaysOtherwise) {
  EXPECT_EQ(current_meta_device(), -1);
  EXPECT_EQ(torch::empty({2}, torch::kMeta).device(),
            c10::Device(torch::kMeta));
}

TEST(MetaDevicesTest, TensorsAreMadeOnTheCurrentOne) {
  const c10::DeviceGuard guard(meta(3));
  EXPECT_EQ(current_meta_device(), 3);
  const Tensor a = torch::empty({2, 3}, torch::kMeta);
  EXPECT_EQ(a.device(), meta(3));
  EXPECT_EQ((a + a).device(), meta(3));
  EXPECT_EQ(torch::zeros_like(a).device(), meta(3));
  {
    const c10::DeviceGuard inner(meta(127));
    EXPECT_EQ(torch::empty({2}, torch::kMeta).device(), meta(127));
  }
  EXPECT_EQ(current_meta_device(), 3);
}

TEST(MetaDevicesTest, EachThreadHasACurrentOne) {
  const c10::DeviceGuard guard(meta(2));
  c10::DeviceIndex seen = 0;
  std::thread([&] { seen = current_meta_device(); }).join();
  EXPECT_EQ(seen, -1);
}

TEST(MetaDevicesTest, ACopyToAnotherOneIsCountedThere) {
  const MetaLedger ledger;
  const c10::DeviceGuard first(meta(0));
  const Tensor a = torch::empty({10}, torch::kMeta);
  EXPECT_TRUE(a.to(meta(0)).is_same(a));
  const c10::DeviceGuard second(meta(1));
  const Tensor b = a.to(meta(1));
  EXPECT_EQ(b.device(), meta(1));
  EXPECT_EQ(ledger.of(0).peak, 40);
  EXPECT_EQ(ledger.of(1).peak, 40);
  EXPECT_EQ(ledger.live_bytes(), 80);
}

TEST(MetaDevicesTest, AreNumberedAndReachedByACopy) {
  const auto devices = meta_devices(128);
  EXPECT_EQ(devices.size(), 128U);
  EXPECT_EQ(devices.back(), meta(127));
  EXPECT_THROW(meta_devices(129), std::invalid_argument);
  const Tensor a = torch::empty({10}, torch::kMeta);
  EXPECT_EQ(to_meta_device(a, devices[5]).device(), meta(5));
  EXPECT_EQ(current_meta_device(), -1);
}

// LibTorch checks this for any device that has an index.
TEST(MetaDevicesTest, TensorsOfTwoDoNotMix) {
  const c10::DeviceGuard first(meta(0));
  const Tensor a = torch::empty({10}, torch::kMeta);
  const c10::DeviceGuard second(meta(1));
  const Tensor b = torch::empty({10}, torch::kMeta);
  EXPECT_THROW(a + b, c10::Error);
}

}  // namespace
}  // namespace gpipe::internal
