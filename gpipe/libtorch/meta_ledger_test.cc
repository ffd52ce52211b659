#include "gpipe/libtorch/meta_ledger.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/libtorch/meta_scope.h"
#include "gpipe/runtime/device/memory_kind.h"

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

namespace gpipe {
namespace {

using gpipe::instruments::CountingAllocator;
using torch::Tensor;

Tensor meta(std::vector<int64_t> sizes) {
  return torch::empty(sizes, torch::TensorOptions().device(at::kMeta));
}

TEST(MetaLedgerTest, CountsTensorsWhileTheyLive) {
  const MetaLedger ledger;
  {
    const Tensor a = meta({10}), b = meta({20}).to(torch::kDouble);
    EXPECT_EQ(ledger.live_bytes(), 40 + 160);
    const Tensor view = a.view({2, 5});
    EXPECT_EQ(ledger.live_bytes(), 40 + 160);
  }
  EXPECT_EQ(ledger.live_bytes(), 0);
  EXPECT_EQ(ledger.peak_bytes(), 40 + 80 + 160);
}

TEST(MetaLedgerTest, CountsWhatIsMadeInItsScopeAlone) {
  const Tensor before = meta({10});
  Tensor kept;
  {
    const MetaLedger outer;
    {
      const MetaLedger inner;
      kept = meta({5});
      const MetaLedgerPause pause;
      const Tensor other = meta({7});
      EXPECT_EQ(inner.live_bytes(), 20);
    }
    std::thread([] { meta({3}); }).join();
    EXPECT_EQ(outer.peak_bytes(), 0);
    const Tensor last = meta({2});
    EXPECT_EQ(outer.live_bytes(), 8);
  }
  std::thread([&] { kept.reset(); }).join();  // after the ledger, on a thread
}

int64_t of(const MetaLedger::ByKind& bytes, internal::MemoryKind kind) {
  return bytes[static_cast<std::size_t>(kind)];
}

TEST(MetaLedgerTest, TellsKindsApart) {
  const MetaLedger ledger;
  const Tensor activation = meta({10});
  const Tensor gradient = meta({20});
  internal::label_memory(gradient, internal::MemoryKind::kGradient);
  internal::label_memory(Tensor(), internal::MemoryKind::kGradient);
  {
    const internal::MemoryKindScope scope(
        internal::MemoryKind::kOptimizerState);
    const Tensor state = meta({30});
    const auto live = ledger.of(-1).live;
    EXPECT_EQ(of(live, internal::MemoryKind::kActivation), 40);
    EXPECT_EQ(of(live, internal::MemoryKind::kGradient), 80);
    EXPECT_EQ(of(live, internal::MemoryKind::kOptimizerState), 120);
  }
  const auto device = ledger.of(-1);
  EXPECT_EQ(of(device.live, internal::MemoryKind::kOptimizerState), 0);
  EXPECT_EQ(device.peak, 240);
  EXPECT_EQ(of(device.at_peak, internal::MemoryKind::kOptimizerState), 120);
  // The tensors counted as activations until label_memory() was called.
  EXPECT_EQ(of(device.kind_peaks, internal::MemoryKind::kActivation), 120);
  EXPECT_EQ(device.transient_peak, 120);

  ledger.reset_peaks();
  EXPECT_EQ(ledger.of(-1).peak, 120);
  EXPECT_EQ(ledger.peak_bytes(), 120);
  EXPECT_EQ(ledger.of(-1).transient_peak, 40);
  EXPECT_EQ(of(ledger.of(-1).kind_peaks, internal::MemoryKind::kOptimizerState),
            0);
}

TEST(MetaLedgerTest, KindsOfViewsAreThoseOfTheirMemory) {
  const MetaLedger ledger;
  const Tensor whole = meta({10});
  internal::label_memory(whole.narrow(0, 0, 2),
                         internal::MemoryKind::kBoundary);
  EXPECT_EQ(of(ledger.of(-1).live, internal::MemoryKind::kBoundary), 40);
  EXPECT_EQ(ledger.of(-1).transient_peak, 40);
  EXPECT_EQ(ledger.of(5).peak, 0);
}

TEST(MetaLedgerTest, CountsMemoryThatGrows) {
  const MetaLedger ledger;
  const Tensor a = meta({0});
  a.resize_({1000});
  EXPECT_EQ(ledger.live_bytes(), 4000);
  EXPECT_EQ(ledger.peak_bytes(), 4000);
  a.resize_({10});  // keeps its memory
  EXPECT_EQ(ledger.live_bytes(), 4000);
  a.resize_({1500});  // is copied to a new block
  EXPECT_EQ(ledger.live_bytes(), 6000);
  EXPECT_EQ(ledger.peak_bytes(), 4000 + 6000);
}

TEST(MetaLedgerTest, KeepsKindAndDeviceOfMemoryThatGrows) {
  const MetaLedger ledger;
  const Tensor a = [] {
    const c10::DeviceGuard guard(c10::Device(c10::kMeta, 3));
    return meta({10});
  }();
  internal::label_memory(a, internal::MemoryKind::kGradient);
  a.resize_({20});
  EXPECT_EQ(of(ledger.of(3).live, internal::MemoryKind::kGradient), 80);
  EXPECT_EQ(ledger.live_bytes(), 80);
}

TEST(MetaLedgerTest, CountsResultsThatOperatorsResize) {
  const Tensor a = meta({10, 100});
  const MetaLedger ledger;
  const Tensor absolute = a.abs();
  EXPECT_EQ(ledger.live_bytes(), 4000);
  EXPECT_EQ(ledger.peak_bytes(), 4000);
  const auto [values, indices] = a.kthvalue(2, 1);
  EXPECT_EQ(ledger.live_bytes(), 4000 + 10 * (4 + 8));
}

TEST(MetaLedgerTest, CountsOnlyTheResultsOfOperatorsWithAKernelOnEachDevice) {
  const Tensor x = meta({4, 6, 8}), channels = meta({6}), row = meta({8}),
               column = meta({6});
  const auto expect_results = [&](const char* name, const auto& run,
                                  int64_t bytes) {
    const MetaLedger ledger;
    const auto results = run();
    EXPECT_EQ(ledger.live_bytes(), bytes) << name;
    EXPECT_EQ(ledger.peak_bytes(), bytes) << name;
  };
  constexpr int64_t kImage = 4 * 6 * 8 * 4;
  expect_results(
      "layer_norm",
      [&] { return at::native_layer_norm(x, {8}, row, row, 1e-5); },
      kImage + 2 * (4 * 6) * 4);
  expect_results(
      "group_norm",
      [&] {
        return at::native_group_norm(x, channels, channels, 4, 6, 8, 2, 1e-5);
      },
      kImage + 2 * (4 * 2) * 4);
  expect_results(
      "mish_backward", [&] { return at::mish_backward(x, x); }, kImage);
  expect_results(
      "addr", [&] { return at::addr(x[0], column, row); }, 6 * 8 * 4);
}

TEST(MetaLedgerTest, LeavesOtherMemoryAlone) {
  const Tensor before = meta({1});
  const MetaLedger ledger;
  before.resize_({2});
  EXPECT_EQ(ledger.peak_bytes(), 0);
  internal::label_memory(torch::ones({2}), internal::MemoryKind::kGradient);
  internal::label_memory(meta({2}),
                         internal::MemoryKind::kGradient);  // without a ledger
}

struct Case {
  std::string name;
  std::vector<int64_t> input;
  std::function<torch::nn::Sequential()> model;
};

class MetaLedgerModels : public ::testing::TestWithParam<Case> {};

// The live bytes after a forward (input, output and saved tensors) and after
// the backward (input, output and gradients).
struct Bytes {
  int64_t forward, backward;
};

Bytes on_cpu(torch::nn::Sequential model, const std::vector<int64_t>& sizes) {
  const int64_t before = CountingAllocator::live_bytes();
  const Tensor input = torch::zeros(sizes);
  const Tensor output = model->forward(input);
  const int64_t forward = CountingAllocator::live_bytes() - before;
  output.backward(torch::ones_like(output));
  return {forward, CountingAllocator::live_bytes() - before};
}

Bytes on_meta(torch::nn::Sequential model, const std::vector<int64_t>& sizes) {
  const MetaLedger ledger;
  const Tensor input = meta(sizes);
  const Tensor output = model->forward(input);
  const int64_t forward = ledger.live_bytes();
  output.backward(torch::ones_like(output));
  return {forward, ledger.live_bytes()};
}

TEST_P(MetaLedgerModels, CountTheBytesOfTheCpu) {
  CountingAllocator::install();
  const Case& test = GetParam();
  const Bytes cpu = on_cpu(test.model(), test.input);
  const auto model = [&] {
    const MetaScope scope(MetaScope::Extent::kNewTensors);
    return test.model();
  }();
  const Bytes meta = on_meta(model, test.input);
  EXPECT_EQ(meta.forward, cpu.forward);
  EXPECT_EQ(meta.backward, cpu.backward);
}

Tensor attend(const Tensor& x) {
  return at::scaled_dot_product_attention(x, x, x, {}, 0.0, true);
}

// Calls operators that make empty results and then resize them.
Tensor resize_results(const Tensor& x) {
  const Tensor z = at::complex(x, x.abs());
  return at::view_as_real(z * z).sum(-1) + x.logsumexp(1, true) +
         std::get<0>(x.kthvalue(2, 1, true)) + std::get<0>(x.median(1, true));
}

using namespace torch::nn;  // NOLINT: the layers' names

INSTANTIATE_TEST_SUITE_P(
    Models, MetaLedgerModels,
    ::testing::Values(
        Case{"Convolutions",
             {2, 3, 17, 17},
             [] {
               return Sequential(
                   Conv2d(Conv2dOptions(3, 8, 3).padding(1).bias(false)),
                   BatchNorm2d(8), ReLU(ReLUOptions().inplace(true)),
                   MaxPool2d(MaxPool2dOptions(3).stride(2)),
                   Conv2d(Conv2dOptions(8, 8, 3).stride(2)), LeakyReLU(),
                   InstanceNorm2d(8), AvgPool2d(2), Flatten(), Linear(8, 4));
             }},
        Case{"Perceptron",
             {5, 16},
             [] {
               return Sequential(Linear(16, 32),
                                 LayerNorm(LayerNormOptions({32})), GELU(),
                                 Linear(32, 8), ReLU(), Softmax(1));
             }},
        Case{"ResizedResults",
             {5, 16},
             [] {
               return Sequential(Linear(16, 16), Functional(resize_results),
                                 Tanh());
             }},
        Case{"Attention",
             {2, 4, 9, 8},
             [] {
               return Sequential(Linear(8, 8), Functional(attend),
                                 Linear(8, 8));
             }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpipe
