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
#include "gpipe/testing/layers.h"
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
  return GPipeOptions(testing::cut(layers, partitions))
      .devices(std::vector<torch::Device>(partitions, device))
      .chunks(4)
      .checkpoint(mode)
      .threads_per_partition(1)
      .one_at_a_time(true);
}

struct Bytes {
  int64_t after_forward, peak, after_backward;
};

// `live` and `peak`: functions that return bytes above those before the step.
template <typename Module>
Bytes step(Module& module, const Tensor& input,
           const std::function<int64_t()>& live,
           const std::function<int64_t()>& peak) {
  Bytes bytes{};
  {
    const Tensor output = module->forward(input);
    bytes.after_forward = live();
    output.backward(torch::ones_like(output));
  }
  bytes.after_backward = live();
  bytes.peak = peak();
  return bytes;
}

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

// Expects that a step on the CPU takes the bytes that a step without memory
// counts. `make`: returns the module on a device.
template <typename Make>
void expect_foretold(const Model& model, const Make& make) {
  CountingAllocator::install();
  torch::manual_seed(0);
  auto on_cpu = make(torch::Device(torch::kCPU));
  const Tensor input = model.input();
  step(
      on_cpu, input, [] { return 0; }, [] { return 0; });
  on_cpu->zero_grad();
  const int64_t before = CountingAllocator::live_bytes();
  CountingAllocator::reset_peak();
  const Bytes cpu = step(
      on_cpu, input, [=] { return CountingAllocator::live_bytes() - before; },
      [=] { return CountingAllocator::peak_bytes() - before; });

  auto dry = [&] {
    const MetaGuard meta;
    return make(torch::Device(torch::kMeta));
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
  ::testing::Test::RecordProperty(
      "peak_error_percent",
      std::to_string(100.0 * (static_cast<double>(meta.peak) / of_cpu - 1)));
}

class ModelMemory
    : public ::testing::TestWithParam<std::tuple<Model, int64_t, Checkpoint>> {
};

TEST_P(ModelMemory, IsForetoldWithoutMemory) {
  // Captured by name, because clang 14 captures no structured binding.
  const auto& [model, partitions, mode] = GetParam();
  expect_foretold(model, [&model = model, partitions = partitions,
                          mode = mode](torch::Device device) {
    const auto layers = model.make();
    return GPipe(layers, options(static_cast<int64_t>(layers->size()),
                                 partitions, mode, device));
  });
}

class PlainModelMemory : public ::testing::TestWithParam<Model> {};

TEST_P(PlainModelMemory, IsForetoldWithoutMemory) {
  at::set_num_threads(1);
  expect_foretold(GetParam(), [](torch::Device) { return GetParam().make(); });
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
