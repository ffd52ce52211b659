// A pipeline without memory counts the same bytes as a pipeline on the CPU
// takes.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/base/instruments.h"
#include "gpipe/gpipe.h"
#include "gpipe/libtorch/meta_ledger.h"
#include "gpipe/meta.h"
#include "gpipe/testing/process.h"
#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe {
namespace {

using gpipe::instruments::CountingAllocator;
using torch::Tensor;

struct Model {
  std::string name;
  std::function<torch::nn::Sequential()> make;
  std::function<Tensor()> input;
};

std::ostream& operator<<(std::ostream& stream, const Model& model) {
  return stream << model.name;
}

std::vector<Model> all_models() {
  using namespace gpipe::models;  // NOLINT: the models' names
  const auto image = [] { return torch::rand({8, 3, 64, 64}); };
  const auto transformer_options = TransformerOptions()
                                       .num_layers(4)
                                       .width(64)
                                       .feed_forward(256)
                                       .heads(4)
                                       .vocabulary(50)
                                       .sequence(16);
  return {{"UNet", [] { return unet(5, 2, 8); }, image},
          {"NarrowUNet", [] { return unet(5, 1, 8); }, image},
          {"AmoebaNetD", [] { return amoebanetd(10, 6, 32); }, image},
          {"ResNet",
           [] { return testing::is_thorough() ? resnet101(10) : resnet50(10); },
           image},
          {"Transformer", [=] { return transformer(transformer_options); },
           [] {
             return torch::randint(50, {8, 16}, torch::kLong);
           }}};
}

GPipeOptions options(int64_t layers, int64_t partitions, Checkpoint mode,
                     torch::Device device) {
  std::vector<int64_t> balance;
  for (int64_t j = 0; j < partitions; ++j) {
    balance.push_back(layers * (j + 1) / partitions - layers * j / partitions);
  }
  return GPipeOptions(balance)
      .devices(std::vector<torch::Device>(balance.size(), device))
      .chunks(4)
      .checkpoint(mode)
      .threads_per_partition(1)
      .one_at_a_time(true);
}

struct Bytes {
  int64_t after_forward, peak, after_backward;
};

// `live` and `peak`: functions that return bytes above those before the step.
Bytes step(GPipe& pipeline, const Tensor& input,
           const std::function<int64_t()>& live,
           const std::function<int64_t()>& peak) {
  Bytes bytes{};
  {
    const Tensor output = pipeline->forward(input);
    bytes.after_forward = live();
    output.backward(torch::ones_like(output));
  }
  bytes.after_backward = live();
  bytes.peak = peak();
  return bytes;
}

class ModelMemory
    : public ::testing::TestWithParam<std::tuple<Model, int64_t, Checkpoint>> {
};

// Returns whether the temporary memory of oneDNN's convolutions is predicted.
// The prediction is for its AVX-512 kernels (gpipe/libtorch/meta_scope.cc);
// other kernels take more.
bool workspaces_are_known() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw");
#else
  return false;
#endif
}

TEST_P(ModelMemory, IsForetoldWithoutMemory) {
  instruments::CountingAllocator::install();
  const auto& [model, partitions, mode] = GetParam();
  torch::manual_seed(0);

  const auto on_cpu = model.make();
  const auto layers = static_cast<int64_t>(on_cpu->size());
  GPipe pipeline(on_cpu, options(layers, partitions, mode, torch::kCPU));
  const Tensor input = model.input();
  step(
      pipeline, input, [] { return 0; }, [] { return 0; });
  pipeline->zero_grad();
  const int64_t before = instruments::CountingAllocator::live_bytes();
  instruments::CountingAllocator::reset_peak();
  const Bytes cpu = step(
      pipeline, input,
      [=] { return instruments::CountingAllocator::live_bytes() - before; },
      [=] { return instruments::CountingAllocator::peak_bytes() - before; });

  // Captured by name, because clang 14 captures no structured binding.
  GPipe dry = [&, &model = model, partitions = partitions, mode = mode] {
    const MetaGuard meta;
    return GPipe(model.make(), options(layers, partitions, mode, torch::kMeta));
  }();
  const Tensor dry_input =
      torch::empty(input.sizes(), input.options().device(torch::kMeta));
  const MetaLedger ledger;
  const Bytes meta = step(
      dry, dry_input, [&] { return ledger.live_bytes(); },
      [&] { return ledger.peak_bytes(); });

  EXPECT_EQ(meta.after_forward, cpu.after_forward);
  EXPECT_EQ(meta.after_backward, cpu.after_backward);
  const auto of_cpu = static_cast<double>(cpu.peak);
  if (workspaces_are_known()) {
    EXPECT_NEAR(static_cast<double>(meta.peak), of_cpu, 0.03 * of_cpu);
  }
  RecordProperty(
      "peak_error_percent",
      std::to_string(100.0 * (static_cast<double>(meta.peak) / of_cpu - 1)));
}

class PlainModelMemory : public ::testing::TestWithParam<Model> {};

TEST_P(PlainModelMemory, IsForetoldWithoutMemory) {
  instruments::CountingAllocator::install();
  at::set_num_threads(1);
  torch::manual_seed(0);
  const auto step = [](torch::nn::Sequential& model, const Tensor& input,
                       const std::function<int64_t()>& live) {
    const Tensor output = model->forward(input);
    const int64_t after_forward = live();
    output.backward(torch::ones_like(output));
    return after_forward;
  };

  auto on_cpu = GetParam().make();
  const Tensor input = GetParam().input();
  step(on_cpu, input, [] { return 0; });
  on_cpu->zero_grad();
  const int64_t before = instruments::CountingAllocator::live_bytes();
  instruments::CountingAllocator::reset_peak();
  const int64_t cpu = step(on_cpu, input, [=] {
    return instruments::CountingAllocator::live_bytes() - before;
  });
  const auto cpu_peak = static_cast<double>(
      instruments::CountingAllocator::peak_bytes() - before);

  auto on_meta = [] {
    const MetaGuard meta;
    return GetParam().make();
  }();
  const Tensor dry_input =
      torch::empty(input.sizes(), input.options().device(torch::kMeta));
  const MetaLedger ledger;
  const int64_t meta =
      step(on_meta, dry_input, [&] { return ledger.live_bytes(); });
  EXPECT_EQ(meta, cpu);
  const auto peak = static_cast<double>(ledger.peak_bytes());
  if (workspaces_are_known()) {
    EXPECT_NEAR(peak, cpu_peak, 0.03 * cpu_peak);
  }
  RecordProperty("peak_error_percent",
                 std::to_string(100.0 * (peak / cpu_peak - 1)));
}

INSTANTIATE_TEST_SUITE_P(All, PlainModelMemory,
                         ::testing::ValuesIn(all_models()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    All, ModelMemory,
    ::testing::Combine(::testing::ValuesIn(all_models()),
                       ::testing::Values(1, 2, 4),
                       ::testing::Values(Checkpoint::kAlways,
                                         Checkpoint::kNever)),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" +
             std::to_string(std::get<1>(info.param)) + "_" +
             to_string(std::get<2>(info.param));
    });

}  // namespace
}  // namespace gpipe
