#include "gpipe/runtime/cell/partition.h"

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

using torch::Tensor;
namespace nn = torch::nn;

const c10::Device kCpu(c10::kCPU);

// A layer with a frozen parameter and a buffer, around a BatchNorm.
struct CounterImpl : nn::Module {
  CounterImpl() {
    frozen = register_parameter("frozen", torch::ones({2}), false);
    count = register_buffer("count", torch::zeros({1}));
    norm = register_module("norm", nn::BatchNorm1d(3));
  }
  Tensor forward(const Tensor& x) { return norm(x) + frozen + count; }
  Tensor frozen, count;
  nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Counter);

// Returns layers with the names "0", "1", ... and without skip tensors.
std::vector<Layer> named(std::vector<nn::AnyModule> modules) {
  std::vector<Layer> layers(modules.size());
  for (std::size_t k = 0; k < layers.size(); ++k) {
    layers[k].module = std::move(modules[k]);
    layers[k].name = std::to_string(k);
    layers[k].index = static_cast<int64_t>(k);
  }
  return layers;
}

nn::AnyModule linear() { return nn::AnyModule(nn::Linear(2, 2)); }

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (!a[k].is_same(b[k])) return false;
  }
  return true;
}

TEST(Partition, CutsLayersByTheBalance) {
  const c10::Device other(c10::kMeta, 1);
  const auto parts =
      partition(named({linear(), linear(), linear()}), {1, 2}, {kCpu, other});
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].index, 0);
  EXPECT_EQ(parts[1].index, 1);
  EXPECT_EQ(parts[0].device, kCpu);
  EXPECT_EQ(parts[1].device, other);
  ASSERT_EQ(parts[0].layers.size(), 1u);
  ASSERT_EQ(parts[1].layers.size(), 2u);
  EXPECT_EQ(parts[0].layers[0].name, "0");
  EXPECT_EQ(parts[1].layers[0].name, "1");
  EXPECT_EQ(parts[1].layers[1].name, "2");
  EXPECT_FALSE(parts[0].remote);
  // Parameters stay where they are.
  EXPECT_EQ(parts[1].parameters[0].device(), kCpu);
}

TEST(Partition, ListsModulesParametersAndTheTwoKindsOfBuffers) {
  Counter counter;
  nn::Linear last(3, 1);
  const auto parts = partition(
      named({nn::AnyModule(counter), nn::AnyModule(last)}), {2}, {kCpu});
  EXPECT_EQ(parts[0].modules.size(), 3u);
  EXPECT_TRUE(same(parts[0].parameters,
                   {counter->frozen, counter->norm->weight, counter->norm->bias,
                    last->weight, last->bias}));
  EXPECT_TRUE(same(parts[0].other_buffers, {counter->count}));
  EXPECT_TRUE(same(parts[0].norm_buffers,
                   {counter->norm->running_mean, counter->norm->running_var,
                    counter->norm->num_batches_tracked}));
  EXPECT_EQ(parts[0].name_of(counter->norm->weight), "0.norm.weight");
  EXPECT_EQ(parts[0].name_of(last->bias), "1.bias");
  EXPECT_EQ(parts[0].name_of(last->bias.detach()), "");
}

TEST(Partition, OfAnotherProcessIsRemoteAndKeepsItsRoutes) {
  auto layers = named({linear(), nn::AnyModule(), nn::AnyModule(), linear()});
  const SkipKey a{Namespace::none(), "a"}, b{Namespace::none(), "b"};
  layers[0].skips.stash = {a};
  layers[1].skips.stash = {b};
  layers[3].skips.pop = {b, a};
  const auto parts =
      partition(std::move(layers), {1, 2, 1}, {kCpu, kCpu, kCpu});
  EXPECT_TRUE(parts[1].remote);
  EXPECT_TRUE(parts[1].layers.empty());
  EXPECT_FALSE(parts[2].remote);
  ASSERT_EQ(parts[0].exports.size(), 1u);
  ASSERT_EQ(parts[1].exports.size(), 1u);
  ASSERT_EQ(parts[2].imports.size(), 2u);
  EXPECT_EQ(parts[1].exports[0].key, b);
  EXPECT_EQ(parts[2].imports[0].key, a);  // by source
  EXPECT_EQ(parts[2].imports[0].from, 0);
  EXPECT_EQ(parts[2].imports[1].key, b);
  EXPECT_EQ(parts[2].imports[1].from, 1);
  EXPECT_TRUE(parts[2].exports.empty());
}

TEST(Partition, BuffersThatAnOperatorUsesAsStatisticsAreThoseOfANorm) {
  Counter counter;
  auto parts = partition(named({nn::AnyModule(counter)}), {1}, {kCpu});
  parts[0].add_norm_buffers({torch::ones({1}), counter->norm->running_mean});
  EXPECT_EQ(parts[0].norm_buffers.size(), 3u);
  parts[0].add_norm_buffers({counter->count});
  EXPECT_TRUE(parts[0].other_buffers.empty());
  EXPECT_TRUE(parts[0].norm_buffers.back().is_same(counter->count));
  EXPECT_TRUE(parts[0].values_of_other_buffers().empty());
}

TEST(Partition, CopiesABufferAgainOnlyIfItHasChanged) {
  Counter counter;
  auto parts = partition(named({nn::AnyModule(counter)}), {1}, {kCpu});
  Partition& part = parts[0];
  std::vector<BufferValue> first = part.values_of_other_buffers();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_TRUE(first[0].buffer.is_same(counter->count));
  EXPECT_FALSE(first[0].value.is_alias_of(counter->count));
  const auto second = part.values_of_other_buffers();
  EXPECT_TRUE(second[0].value.is_same(first[0].value));

  counter->count.add_(5);
  const auto third = part.values_of_other_buffers();
  EXPECT_EQ(third[0].value.item<float>(), 5);
  EXPECT_EQ(third[0].version, first[0].version + 1);
  EXPECT_EQ(first[0].value.item<float>(), 0);
}

TEST(Partition, DoesNotKeepCopiesOfBuffersAlive) {
  Counter counter;
  auto parts = partition(named({nn::AnyModule(counter)}), {1}, {kCpu});
  std::vector<BufferValue> first = parts[0].values_of_other_buffers();
  const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> copy(
      first[0].value.getIntrusivePtr());
  first.clear();
  EXPECT_TRUE(copy.expired());
  EXPECT_EQ(parts[0].values_of_other_buffers()[0].value.item<float>(), 0);
}

TEST(VersionOf, CountsChangesInPlace) {
  const Tensor tensor = torch::zeros({2});
  const int64_t before = version_of(tensor);
  tensor.add_(1);
  tensor.view({1, 2}).add_(1);
  EXPECT_EQ(version_of(tensor), before + 2);
  EXPECT_EQ(version_of(Tensor()), -1);
  const c10::InferenceMode inference;
  EXPECT_EQ(version_of(torch::zeros({2})), -1);
}

}  // namespace
}  // namespace gpipe::internal
