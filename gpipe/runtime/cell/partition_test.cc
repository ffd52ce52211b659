#include "gpipe/runtime/cell/partition.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <utility>
#include <vector>

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;

const c10::Device kCpu(c10::kCPU);

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
  EXPECT_EQ(parts[1].modules.parameters()[0].device(), kCpu);
}

TEST(Partition, NamesWhatItsLayersHave) {
  nn::BatchNorm1d first(2);
  nn::Linear last(2, 1);
  const auto parts = partition(
      named({nn::AnyModule(first), nn::AnyModule(last)}), {2}, {kCpu});
  EXPECT_EQ(parts[0].modules.training().size(), 2u);
  EXPECT_EQ(parts[0].modules.name_of(last->bias), "1.bias");
  EXPECT_EQ(parts[0].modules.name_of(first->running_var), "0.running_var");
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

}  // namespace
}  // namespace gpipe::internal
