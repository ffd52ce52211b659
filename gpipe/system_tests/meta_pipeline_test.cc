// Tests pipelines on the meta device.
#include <c10/core/DeviceGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/types.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/gpipe.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/meta.h"
#include "gpipe/runtime/device/memory_kind.h"

namespace gpipe {
namespace {

using instruments::CountingAllocator;
using torch::Tensor;
using namespace torch::nn;  // NOLINT: the layers' names

// Returns layers whose CPU kernels need no workspace; those of convolutions do.
Sequential make() {
  return Sequential(Linear(16, 64), BatchNorm1d(64), ReLU(), Dropout(0.5),
                    Linear(64, 48), ReLU(ReLUOptions().inplace(true)),
                    LayerNorm(LayerNormOptions({48})), Linear(48, 10));
}

GPipe pipeline_on(c10::DeviceType device, const std::vector<int64_t>& balance,
                  int64_t chunks, Checkpoint mode) {
  return GPipe(make(), GPipeOptions(balance)
                           .devices(std::vector<torch::Device>(
                               balance.size(), torch::Device(device)))
                           .chunks(chunks)
                           .checkpoint(mode)
                           .threads_per_partition(1));
}

void step(GPipe& pipeline, const Tensor& input) {
  const Tensor output = pipeline->forward(input);
  output.backward(torch::ones_like(output));
}

class MetaPipeline
    : public ::testing::TestWithParam<std::tuple<int64_t, Checkpoint>> {};

// Uses one partition, so that its worker runs everything in sequence.
TEST_P(MetaPipeline, TakesTheBytesOfOneOnTheCpu) {
  instruments::CountingAllocator::install();
  const auto [chunks, mode] = GetParam();
  const std::vector<int64_t> sizes = {32, 16};

  GPipe on_cpu = pipeline_on(torch::kCPU, {8}, chunks, mode);
  const Tensor cpu_input = torch::ones(sizes);
  const int64_t before = instruments::CountingAllocator::live_bytes();
  instruments::CountingAllocator::reset_peak();
  step(on_cpu, cpu_input);
  const int64_t live = instruments::CountingAllocator::live_bytes() - before;
  const int64_t peak = instruments::CountingAllocator::peak_bytes() - before;

  // Captures copies: clang 14 cannot capture structured bindings.
  GPipe on_meta = [chunks = chunks, mode = mode] {
    const MetaGuard meta;
    return pipeline_on(torch::kMeta, {8}, chunks, mode);
  }();
  const Tensor meta_input = torch::empty(sizes, torch::kMeta);
  const MetaLedger ledger;
  step(on_meta, meta_input);
  EXPECT_EQ(ledger.live_bytes(), live);
  EXPECT_EQ(ledger.peak_bytes(), peak);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, MetaPipeline,
    ::testing::Combine(::testing::Values(1, 4),
                       ::testing::Values(Checkpoint::kAlways,
                                         Checkpoint::kExceptLast,
                                         Checkpoint::kNever)),
    [](const auto& info) {
      return std::string(to_string(std::get<1>(info.param))) + "_" +
             std::to_string(std::get<0>(info.param));
    });

TEST(MetaPipelineTest, TrainsSeveralPartitionsOfAnySize) {
  GPipe pipeline = [] {
    const MetaGuard meta;
    return pipeline_on(torch::kMeta, {3, 3, 2}, 16, Checkpoint::kExceptLast);
  }();
  step(pipeline, torch::empty({10'000'000, 16}, torch::kMeta));
  for (const Tensor& parameter : pipeline->parameters()) {
    EXPECT_TRUE(parameter.grad().is_meta());
    EXPECT_EQ(parameter.grad().sizes(), parameter.sizes());
  }
}

// Tests that each partition's tensors are on its device and are counted there
// by kind.
TEST(MetaPipelineTest, HasADeviceForEachPartition) {
  const std::vector<torch::Device> devices = {
      {torch::kMeta, 0}, {torch::kMeta, 1}, {torch::kMeta, 2}};
  GPipe pipeline = [&] {
    const MetaGuard meta;
    return GPipe(make(), GPipeOptions({3, 3, 2}).devices(devices).chunks(4));
  }();
  const MetaLedger ledger;
  const auto live = [&](int device, internal::MemoryKind kind) {
    return ledger.of(static_cast<c10::DeviceIndex>(device))
        .live[static_cast<std::size_t>(kind)];
  };
  const Tensor input = [] {
    const c10::DeviceGuard first(torch::Device(torch::kMeta, 0));
    return torch::empty({32, 16}, torch::kMeta);
  }();
  const c10::DeviceGuard last(devices.back());
  const Tensor output = pipeline->forward(input);
  EXPECT_EQ(output.device(), devices.back());
  // Checkpointed cells hold their inputs, of 64 and 48 floats per row. The last
  // micro-batch holds its input only if the first layer saves it: LayerNorm
  // does, Dropout does not.
  EXPECT_EQ(live(0, internal::MemoryKind::kBoundary), 0);
  EXPECT_EQ(live(1, internal::MemoryKind::kBoundary), 24 * 64 * 4);
  EXPECT_EQ(live(2, internal::MemoryKind::kBoundary), 32 * 48 * 4);
  output.backward(torch::ones_like(output));

  std::vector<int64_t> gradients(3);
  const std::vector<int> partition_of = {0, 0, 0, 1, 1, 1, 2, 2};
  for (const auto& named : pipeline->named_parameters()) {
    const int partition = partition_of[std::stoi(named.key())];
    EXPECT_EQ(named.value().device(), devices[partition]) << named.key();
    EXPECT_EQ(named.value().grad().device(), devices[partition]);
    gradients[partition] += static_cast<int64_t>(named.value().nbytes());
  }
  for (int j = 0; j < 3; ++j) {
    EXPECT_EQ(live(j, internal::MemoryKind::kGradient), gradients[j]);
    EXPECT_EQ(live(j, internal::MemoryKind::kBoundary), 0);
    EXPECT_EQ(live(j, internal::MemoryKind::kWorkspace), 0);
  }
}

}  // namespace
}  // namespace gpipe
