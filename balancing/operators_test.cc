// What operators keep for backward, by a profile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "balancing/memory_profile.h"
#include "balancing/profile/testing.h"
#include "gpipe/checkpoint.h"
#include "gpipe/libtorch/saved_tensors.h"

namespace gpipe::balancing {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::IsEmpty;
using ::testing::Pair;
using torch::Tensor;
using torch::nn::BatchNorm1d;
using torch::nn::Dropout;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

using Bytes = std::vector<std::pair<std::string, int64_t>>;

constexpr int64_t kRows = 8, kFloat = 4;

Bytes kept(const MemoryProfile& profile, std::size_t layer) {
  Bytes result;
  for (const OperatorMemory& each : profile.layers.at(layer).operators) {
    result.emplace_back(each.name, each.bytes);
  }
  return result;
}

// A Linear, its ReLU, and another Linear in one layer.
struct PerceptronImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return down(torch::relu(up(x))); }
  Linear up = register_module("up", Linear(4, 16));
  Linear down = register_module("down", Linear(16, 2));
};
TORCH_MODULE(Perceptron);

TEST(OperatorMemoryTest, CountsEachTensorForTheFirstOperatorThatKeepsIt) {
  const MemoryProfile profile =
      profile_memory(Sequential(Perceptron()), torch::ones({kRows, 4}));
  // The second Linear keeps the result of ReLU as well.
  EXPECT_THAT(kept(profile, 0),
              ElementsAre(Pair("AddmmBackward0", kRows * 4 * kFloat),
                          Pair("ReluBackward0", kRows * 16 * kFloat)));
}

TEST(OperatorMemoryTest, CountsATensorOfTwoLayersInEachOfThem) {
  const MemoryProfile profile =
      profile_memory(Sequential(Linear(4, 16), ReLU(), Linear(16, 2)),
                     torch::ones({kRows, 4}));
  constexpr int64_t kWide = kRows * 16 * kFloat;
  EXPECT_THAT(kept(profile, 0),
              ElementsAre(Pair("AddmmBackward0", kRows * 4 * kFloat)));
  EXPECT_THAT(kept(profile, 1), ElementsAre(Pair("ReluBackward0", kWide)));
  EXPECT_THAT(kept(profile, 2), ElementsAre(Pair("AddmmBackward0", kWide)));
  EXPECT_EQ(saved_bytes(profile, 1, 3), kWide);
}

TEST(OperatorMemoryTest, HasTheStatisticsOfBatchNormAndTheNoiseOfDropout) {
  const MemoryProfile profile =
      profile_memory(Sequential(Linear(4, 16), BatchNorm1d(16), Dropout(0.5)),
                     torch::ones({kRows, 4}));
  EXPECT_THAT(kept(profile, 1),
              ElementsAre(Pair("NativeBatchNormBackward0",
                               (kRows * 16 + 2 * 16) * kFloat)));
  EXPECT_THAT(kept(profile, 2),
              ElementsAre(Pair("MulBackward0", kRows * 16 * kFloat)));
}

struct AttentionImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    return torch::bmm(torch::softmax(torch::bmm(x, x.transpose(1, 2)), -1), x);
  }
};
TORCH_MODULE(Attention);

TEST(OperatorMemoryTest, HasTheInputAndTheWeightsOfAttention) {
  constexpr int64_t kTokens = 5, kWidth = 3;
  const MemoryProfile profile =
      profile_memory(Sequential(Linear(kWidth, kWidth), Attention()),
                     torch::ones({kRows, kTokens, kWidth}));
  EXPECT_THAT(
      kept(profile, 1),
      ElementsAre(
          Pair("BmmBackward0", kRows * kTokens * kWidth * kFloat),
          Pair("SoftmaxBackward0", kRows * kTokens * kTokens * kFloat)));
}

// Keeps its input as a saved tensor, and twice the input outside of those.
struct OwnFunction : torch::autograd::Function<OwnFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, Tensor x) {
    context->save_for_backward({x});
    context->saved_data["twice"] = x * 2;
    return x * x;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    return {grads[0] * context->saved_data["twice"].toTensor()};
  }
};

struct OwnLayerImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return OwnFunction::apply(x); }
};
TORCH_MODULE(OwnLayer);

TEST(OperatorMemoryTest, HasAllThatAFunctionOfTheUserKeeps) {
  const MemoryProfile profile = profile_memory(
      Sequential(Linear(4, 4), OwnLayer()), torch::ones({kRows, 4}));
  EXPECT_THAT(kept(profile, 1), ElementsAre(Pair(EndsWith("::OwnFunction"),
                                                 2 * kRows * 4 * kFloat)));
}

struct RecomputingImpl : torch::nn::Module {
  Tensor forward(Tensor x) {
    return gpipe::checkpoint([this](Tensor h) { return inner(h); }, x);
  }
  Perceptron inner = register_module("inner", Perceptron());
};
TORCH_MODULE(Recomputing);

TEST(OperatorMemoryTest, HasOnlyTheInputOfACheckpointedFunction) {
  const MemoryProfile profile = profile_memory(
      Sequential(Linear(4, 4), Recomputing()), torch::ones({kRows, 4}));
  EXPECT_THAT(kept(profile, 1),
              ElementsAre(Pair("AddmmBackward0", kRows * 4 * kFloat)));
}

TEST(OperatorMemoryTest, HasNothingForALayerThatKeepsNothing) {
  const MemoryProfile profile = profile_memory(
      Sequential(Linear(4, 4), torch::nn::Flatten()), torch::ones({kRows, 4}));
  EXPECT_THAT(kept(profile, 1), IsEmpty());
}

TEST(OperatorMemoryTest, AddsUpToTheBytesOfTheLayer) {
  const MemoryProfile profile = profile_memory(
      Sequential(Perceptron(), Linear(2, 4), OwnLayer(), BatchNorm1d(4),
                 Dropout(0.5), Recomputing(), torch::nn::GELU()),
      torch::ones({kRows, 4}));
  for (std::size_t k = 0; k < profile.layers.size(); ++k) {
    int64_t sum = 0;
    for (const auto& [name, bytes] : kept(profile, k)) sum += bytes;
    const auto layer = static_cast<int64_t>(k);
    EXPECT_EQ(sum, saved_bytes(profile, layer, layer + 1)) << k;
  }
}

// The storages that operators save, by the hooks of the engine.
class SavedStorages : public internal::SavedTensorHooks {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> next() override {
    return std::make_unique<Hook>(*this);
  }
  int64_t bytes_besides(const std::vector<Tensor>& parameters) const {
    std::set<const void*> seen;
    for (const Tensor& each : parameters) seen.insert(memory(each));
    int64_t bytes = 0;
    for (const Tensor& each : tensors_) {
      if (!seen.insert(memory(each)).second) continue;
      bytes += static_cast<int64_t>(each.storage().nbytes());
    }
    return bytes;
  }

 private:
  struct Hook : torch::autograd::SavedVariableHooks {
    explicit Hook(SavedStorages& all) : all(all) {}
    void call_pack_hook(const Tensor& tensor) override {
      value = tensor.tensor_data();
      all.tensors_.push_back(value);
    }
    Tensor call_unpack_hook() override { return value; }
    SavedStorages& all;
    Tensor value;
  };
  static const void* memory(const Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  }
  std::vector<Tensor> tensors_;
};

TEST(OperatorMemoryTest, AgreesWithTheHooksOfSavedTensors) {
  Sequential model(Perceptron(), Linear(2, 4), Dropout(0.5), Linear(4, 4),
                   Recomputing(), torch::nn::GELU(),
                   torch::nn::LayerNorm(torch::nn::LayerNormOptions({2})));
  const Tensor input = torch::ones({kRows, 4});
  const MemoryProfile profile = profile_memory(model, input);
  SavedStorages saved;
  {
    const internal::SavedTensorScope scope(&saved);
    model->forward(input);
  }
  EXPECT_EQ(saved_bytes(profile, 0, 7),
            saved.bytes_besides(model->parameters()));
}

}  // namespace
}  // namespace gpipe::balancing
