#include "gpipe/runtime/cell/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/functional.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"

namespace gpipe::internal {
namespace {

namespace nn = torch::nn;
using testing::error_of;
using ::testing::StartsWith;

const c10::Device kCpu(c10::kCPU);

nn::Linear linear() { return nn::Linear(2, 2); }

TEST(Partition, CutsLayersByTheBalance) {
  const c10::Device other(c10::kMeta, 1);
  const auto parts =
      partition(layers_of(nn::Sequential(linear(), linear(), linear())), {1, 2},
                {kCpu, other});
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
  const auto parts =
      partition(layers_of(nn::Sequential(first, last)), {2}, {kCpu});
  EXPECT_EQ(parts[0].modules.modules()->size(), 2u);
  EXPECT_EQ(parts[0].modules.name_of(last->bias), "1.bias");
  EXPECT_EQ(parts[0].modules.name_of(first->running_var), "0.running_var");
}

TEST(Partition, OfAnotherProcessIsRemoteAndKeepsItsRoutes) {
  auto layers =
      layers_of(nn::Sequential(linear(), linear(), linear(), linear()));
  layers[1].module = layers[2].module = nn::AnyModule();
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

// Returns the layer that takes time first, if each layer is a partition.
std::string time_first(const nn::Sequential& model) {
  const auto count = static_cast<std::size_t>(model->size());
  return time_first_layer(partition(layers_of(model),
                                    std::vector<int64_t>(count, 1),
                                    std::vector<c10::Device>(count, kCpu)));
}

TEST(TimeFirstLayer, IsOneOfLibTorchsWithoutBatchFirst) {
  const nn::TransformerEncoderLayer encoder(
      nn::TransformerEncoderLayerOptions(2, 1).dim_feedforward(2));
  EXPECT_EQ(time_first(nn::Sequential(nn::RNN(2, 2))), "0");
  EXPECT_EQ(time_first(nn::Sequential(nn::GRU(2, 2))), "0");
  EXPECT_EQ(time_first(nn::Sequential(nn::LSTM(2, 2))), "0");
  EXPECT_EQ(time_first(nn::Sequential(encoder)), "0");
  EXPECT_EQ(time_first(nn::Sequential(nn::TransformerEncoder(encoder, 1))),
            "0");
  const nn::GRU rows_first(nn::GRUOptions(2, 2).batch_first(true));
  EXPECT_EQ(time_first(nn::Sequential(rows_first)), "");
  EXPECT_EQ(time_first(nn::Sequential(linear(), linear())), "");
}

TEST(TimeFirstLayer, IsNotBehindALayerThatMayTranspose) {
  const nn::LSTM lstm(2, 2);
  EXPECT_EQ(time_first(nn::Sequential(nn::Embedding(3, 2), lstm)), "1");
  const nn::Functional transpose(
      [](const at::Tensor& x) { return x.transpose(0, 1); });
  EXPECT_EQ(time_first(nn::Sequential(transpose, lstm)), "");
  struct OwnImpl : nn::IdentityImpl {};
  EXPECT_EQ(time_first(nn::Sequential(std::make_shared<OwnImpl>(), lstm)), "");
}

TEST(Assembly, ChecksTheNumbersOfABalance) {
  check_balance({2, 1}, 3);
  constexpr int64_t kLarge = int64_t{1} << 62;
  EXPECT_NE(error_of([] {
              check_balance({kLarge, kLarge, kLarge, kLarge, 3}, 3);
            }),
            "");
  EXPECT_EQ(error_of([] {
              check_positive({kLarge, kLarge});
            }).rfind("c10::ValueError: the sum of balance is too large", 0),
            0u);
  check_positive({1});
}

TEST(Assembly, ChecksStagesPerRank) {
  check_stages_per_rank(6, 3);
  for (const int64_t wrong : {4, 0, -2}) {
    EXPECT_EQ(error_of([&] { check_stages_per_rank(6, wrong); }),
              "c10::ValueError: the number of partitions must be a multiple of "
              "stages_per_rank, which must be positive (partitions: 6, "
              "stages_per_rank: " +
                  std::to_string(wrong) + ")");
  }
}

TEST(Assembly, LayersHaveTheNamesOfTheSequential) {
  nn::Sequential model;
  nn::Linear linear(2, 2);
  model->push_back("encoder", linear);
  model->push_back("decoder", nn::Linear(2, 2));
  const std::vector<Layer> layers = layers_of(model);
  ASSERT_EQ(layers.size(), 2u);
  EXPECT_EQ(layers[0].name, "encoder");
  EXPECT_EQ(layers[1].name, "decoder");
  EXPECT_EQ(layers[1].index, 1);
  EXPECT_EQ(layers[0].module.ptr().get(), linear.ptr().get());
  EXPECT_TRUE(layers[0].skips.stash.empty());
}

TEST(Assembly, MovesLayersToTheDeviceOfTheirPartition) {
  nn::BatchNorm1d norm(2);
  nn::Linear last(2, 2);
  nn::Sequential model(norm, last);
  const c10::Device device = testing::device();
  auto partitions = partition(layers_of(model), {1, 1}, {device, kCpu});
  EXPECT_EQ(is_off(*norm, device), device != kCpu);
  const void* const memory = last->weight.data_ptr();
  move_layers(partitions);
  EXPECT_FALSE(is_off(*norm, device));
  EXPECT_EQ(norm->weight.device(), device);
  EXPECT_EQ(norm->running_mean.device(), device);
  EXPECT_EQ(last->weight.data_ptr(), memory);
  EXPECT_TRUE(is_off(*norm, c10::Device(c10::kMeta)));
}

TEST(Assembly, DefersTheStatisticsOfEachPartition) {
  nn::Sequential model(nn::BatchNorm1d(2), nn::Linear(2, 2));
  auto partitions = partition(layers_of(model), {1, 1}, {kCpu, kCpu});
  EXPECT_EQ(partitions[0].norms, nullptr);
  defer_norms(partitions);
  ASSERT_NE(partitions[0].norms, nullptr);
  ASSERT_NE(partitions[1].norms, nullptr);
  EXPECT_NE(partitions[0].norms, partitions[1].norms);
}

}  // namespace
}  // namespace gpipe::internal
