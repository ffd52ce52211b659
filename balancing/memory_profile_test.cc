#include "balancing/memory_profile.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "balancing/profile/testing.h"
#include "gpipe/base/instruments.h"
#include "gpipe/checkpoint.h"
#include "gpipe/libtorch/saved_tensors.h"
#include "gpipe/meta.h"
#include "gpipe/skip.h"
#include "gpipe/testing/layers.h"

namespace gpipe::balancing {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

using gpipe::instruments::CountingAllocator;
using testing::layer;
using torch::Tensor;
using namespace torch::nn;  // NOLINT: the layers' names

MemoryProfile profile_of(const Sequential& model) {
  return profile_memory(model, torch::ones({8, 4}));
}

TEST(MemoryProfileTest, CountsWhatLayersHaveAndReturn) {
  Sequential model(Linear(4, 16), BatchNorm1d(16), ReLU(), Linear(16, 2));
  model->parameters()[0].set_requires_grad(false);
  const MemoryProfile profile = profile_of(model);
  EXPECT_EQ(profile.input_bytes, 8 * 4 * 4);
  ASSERT_EQ(profile.layers.size(), 4);
  EXPECT_EQ(profile.layers[0].parameter_bytes, (64 + 16) * 4);
  EXPECT_EQ(profile.layers[0].trained_bytes, 16 * 4);
  EXPECT_EQ(profile.layers[1].buffer_bytes, 32 * 4 + 8);
  EXPECT_EQ(profile.layers[1].output_bytes, 8 * 16 * 4);
  EXPECT_EQ(profile.layers[3].output_bytes, 8 * 2 * 4);
}

TEST(MemoryProfileTest, KnowsWhoKeepsWhat) {
  // ReLU keeps its result, and the layer after it keeps the same tensor as its
  // input.
  Sequential model(Linear(4, 16), ReLU(), Linear(16, 2), ReLU());
  const MemoryProfile profile = profile_of(model);
  constexpr int64_t kWide = 8 * 16 * 4, kInput = 8 * 4 * 4, kOutput = 8 * 2 * 4;
  EXPECT_EQ(saved_bytes(profile, 0, 4), kInput + kWide + kOutput);
  EXPECT_EQ(saved_bytes(profile, 0, 1), kInput);
  EXPECT_EQ(saved_bytes(profile, 0, 2), kInput + kWide);
  EXPECT_EQ(saved_bytes(profile, 1, 2), kWide);
  EXPECT_EQ(saved_bytes(profile, 2, 3), kWide);
  EXPECT_EQ(saved_bytes(profile, 3, 4), kOutput);
  EXPECT_EQ(saved_bytes(profile, 2, 2), 0);
}

TEST(MemoryProfileTest, KnowsWhatIsHeldForTheGradientsOfWeights) {
  // The product of the second linear layer needs its input, which ReLU keeps,
  // too, and the gradient of its output. The first one has no input part.
  Sequential model(Linear(4, 16), ReLU(), Linear(16, 2), Tanh());
  const MemoryProfile profile = profile_of(model);
  constexpr int64_t kWide = 8 * 16 * 4, kInput = 8 * 4 * 4, kOutput = 8 * 2 * 4;
  EXPECT_EQ(bytes_for_weights(profile, 0, 1), kInput + kWide);
  EXPECT_EQ(bytes_for_weights(profile, 1, 2), 0);
  EXPECT_EQ(bytes_for_weights(profile, 2, 3), kWide + kOutput);
  EXPECT_EQ(bytes_for_weights(profile, 3, 4), 0);
  EXPECT_EQ(bytes_for_weights(profile, 0, 4), kInput + 2 * kWide + kOutput);
}

// Its backward reads a value.
struct ReadsInBackward : torch::autograd::Function<ReadsInBackward> {
  static Tensor forward(torch::autograd::AutogradContext* context,
                        const Tensor& x, const Tensor& factor) {
    context->save_for_backward({x, factor});
    return x * factor;
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * saved[1].item<float>(), (grads[0] * saved[0]).sum()};
  }
};
struct ReadsImpl : torch::nn::Cloneable<ReadsImpl> {
  ReadsImpl() { reset(); }
  void reset() override {
    factor = register_parameter("factor", torch::ones({}));
  }
  Tensor forward(Tensor x) { return ReadsInBackward::apply(x, factor); }
  Tensor factor;
};
TORCH_MODULE(Reads);

TEST(MemoryProfileTest, HoldsAllForWeightsOfALayerWithoutBackwardOnMeta) {
  Sequential model(Linear(4, 16), ReLU(), Reads());
  const MemoryProfile profile = profile_of(model);
  constexpr int64_t kWide = 8 * 16 * 4;
  EXPECT_EQ(bytes_for_weights(profile, 2, 3), kWide + kWide);
}

TEST(MemoryProfileTest, SeesThroughLayersThatReturnTheirInput) {
  Sequential model(Linear(4, 16), ReLU(ReLUOptions().inplace(true)), Identity(),
                   Flatten(), Linear(16, 2));
  const MemoryProfile profile = profile_of(model);
  EXPECT_EQ(saved_bytes(profile, 1, 5), 8 * 16 * 4);
  EXPECT_EQ(saved_bytes(profile, 2, 4), 0);
  EXPECT_EQ(profile.layers[2].kept_bytes, 0);
}

struct KeepInputImpl : torch::nn::Module, Skippable {
  KeepInputImpl() : Skippable({{"kept"}, {}}) {}
  Tensor forward(Tensor x) {
    stash("kept", x * 2);
    return x;
  }
};
TORCH_MODULE(KeepInput);
struct TimesImpl : torch::nn::Module, Skippable {
  TimesImpl() : Skippable({{}, {"kept"}}) {}
  Tensor forward(Tensor x) { return x * *pop("kept"); }
};
TORCH_MODULE(Times);

TEST(MemoryProfileTest, FollowsSkips) {
  Sequential model(Linear(4, 4), KeepInput(), Linear(4, 4), Times());
  const MemoryProfile profile = profile_of(model);
  constexpr int64_t kRows = 8 * 4 * 4;
  ASSERT_EQ(profile.skips.size(), 1);
  EXPECT_EQ(profile.skips[0].stashed_by, 1);
  EXPECT_EQ(profile.skips[0].popped_by, 3);
  EXPECT_EQ(profile.skips[0].bytes, kRows);
  EXPECT_EQ(profile.layers[1].kept_bytes, kRows);
  EXPECT_EQ(incoming_bytes(profile, 0, 4), kRows);
  EXPECT_EQ(incoming_bytes(profile, 1, 3), kRows);
  EXPECT_EQ(incoming_bytes(profile, 2, 3), kRows);
  EXPECT_EQ(incoming_bytes(profile, 2, 4), 2 * kRows);
  EXPECT_EQ(incoming_bytes(profile, 3, 4), 2 * kRows);
  // The product alone keeps x and the stashed tensor.
  EXPECT_EQ(saved_bytes(profile, 3, 4), 2 * kRows);
}

struct StashWeightImpl : torch::nn::Module, Skippable {
  StashWeightImpl() : Skippable({{"kept"}, {}}) {}
  Tensor forward(Tensor x) {
    stash("kept", weight);
    return x * weight;
  }
  Tensor weight = register_parameter("weight", torch::ones({4}));
};
TORCH_MODULE(StashWeight);

TEST(MemoryProfileTest, CountsAStashedWeightAsAParameterOnly) {
  Sequential model(Linear(4, 4), StashWeight(), Times());
  const MemoryProfile profile = profile_of(model);
  constexpr int64_t kRows = 8 * 4 * 4;
  EXPECT_EQ(profile.layers[1].parameter_bytes, 16);
  EXPECT_EQ(profile.layers[1].kept_bytes, kRows);
  EXPECT_EQ(profile.skips[0].bytes, 16);
  EXPECT_EQ(saved_bytes(profile, 1, 3), 2 * kRows);  // both factors
  EXPECT_EQ(saved_bytes(profile, 2, 3), kRows);
}

struct StashAndMultiplyImpl : torch::nn::Module, Skippable {
  StashAndMultiplyImpl() : Skippable({{"kept"}, {}}) {}
  Tensor forward(Tensor x) {
    stash("kept", x * 2);
    return linear->forward(x);
  }
  Linear linear = register_module("linear", Linear(4, 4));
};
TORCH_MODULE(StashAndMultiply);

TEST(MemoryProfileTest, HoldsNoStashedTensorForTheGradientsOfWeights) {
  Sequential model(Linear(4, 4), StashAndMultiply(), Times());
  const MemoryProfile profile = profile_of(model);
  // The product's input, and the gradient of its output.
  EXPECT_EQ(bytes_for_weights(profile, 1, 2), 2 * 8 * 4 * 4);
}

// Neither stashes nor pops what it declares.
struct ForgetsImpl : torch::nn::Module, Skippable {
  ForgetsImpl(std::vector<std::string> stash, std::vector<std::string> pop)
      : Skippable({std::move(stash), std::move(pop)}) {}
  Tensor forward(Tensor x) { return x; }
};
TORCH_MODULE(Forgets);

TEST(MemoryProfileTest, NamesASkipThatIsNotStashed) {
  Sequential model(
      Forgets(std::vector<std::string>{"kept"}, std::vector<std::string>()),
      Forgets(std::vector<std::string>(), std::vector<std::string>{"kept"}));
  EXPECT_THAT([&] { profile_of(model); },
              ThrowsMessage<c10::Error>(HasSubstr("'kept' has not been "
                                                  "stashed")));
}

struct GraphImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return torch::mm(edges, x); }
  // Two indices and a number for each of 8 edges.
  Tensor edges = register_buffer("edges", torch::eye(8).to_sparse());
};
TORCH_MODULE(Graph);

TEST(MemoryProfileTest, CountsSparseBuffers) {
  Sequential model(Linear(4, 4), Graph());
  const MemoryProfile profile = profile_of(model);
  EXPECT_EQ(profile.layers[1].buffer_bytes, 8 * (2 * 8 + 4));
  EXPECT_EQ(profile.layers[1].output_bytes, 8 * 4 * 4);
}

struct Case {
  std::string name;
  std::vector<int64_t> input;
  std::function<Sequential()> model;
};

class MemoryProfileModels : public ::testing::TestWithParam<Case> {};

// A plain forward keeps its input, its output, and what the layers save.
TEST_P(MemoryProfileModels, CountTheBytesOfTheCpu) {
  instruments::CountingAllocator::install();
  Sequential model = GetParam().model();
  const MemoryProfile profile =
      profile_memory(model, torch::ones(GetParam().input));
  const int64_t before = instruments::CountingAllocator::live_bytes();
  Tensor input = torch::ones(GetParam().input);
  torch::autograd::Edge graph;
  {
    const Tensor output = model->forward(input);
    graph = torch::autograd::impl::gradient_edge(output);
  }
  input.reset();
  EXPECT_EQ(saved_bytes(profile, 0, static_cast<int64_t>(model->size())),
            instruments::CountingAllocator::live_bytes() - before);
}

INSTANTIATE_TEST_SUITE_P(
    Models, MemoryProfileModels,
    ::testing::Values(
        Case{"Convolutions",
             {2, 3, 17, 17},
             [] {
               return Sequential(
                   Conv2d(Conv2dOptions(3, 8, 3).padding(1).bias(false)),
                   BatchNorm2d(8), ReLU(ReLUOptions().inplace(true)),
                   MaxPool2d(MaxPool2dOptions(3).stride(2)),
                   Conv2d(Conv2dOptions(8, 8, 3).stride(2)), LeakyReLU(),
                   InstanceNorm2d(8), Dropout2d(0.5), AvgPool2d(2), Flatten(),
                   Linear(8, 4));
             }},
        Case{"Perceptron",
             {5, 16},
             [] {
               return Sequential(
                   Linear(16, 32), LayerNorm(LayerNormOptions({32})), GELU(),
                   Dropout(0.5), Linear(32, 8), ReLU(), Softmax(1));
             }},
        Case{"Transformer",
             {5, 2, 8},
             [] {
               const TransformerEncoderLayer layer(
                   TransformerEncoderLayerOptions(8, 2).dim_feedforward(16));
               return Sequential(layer, TransformerEncoder(layer, 2));
             }},
        Case{"AttentionOfOneQuery",
             {5, 2, 6, 4},
             [] {
               return Sequential(Linear(4, 4), Functional([](Tensor x) {
                                   return at::scaled_dot_product_attention(
                                       x.slice(0, 0, 1), x, x);
                                 }));
             }},
        Case{"AttentionWithAMask",
             {5, 2, 6, 4},
             [] {
               return Sequential(Linear(4, 4), Functional([](Tensor x) {
                                   return at::scaled_dot_product_attention(
                                       x, x, x, torch::eye(6).to(at::kBool));
                                 }));
             }},
        Case{"ResizedResults",
             {5, 16},
             [] {
               return Sequential(Linear(16, 16), Functional([](Tensor x) {
                                   const Tensor z = at::complex(x, x.abs());
                                   return at::view_as_real(z * z).sum(-1) -
                                          x.logsumexp(1, true);
                                 }));
             }},
        Case{"Skips",
             {5, 4},
             [] {
               return Sequential(Linear(4, 4), KeepInput(), ReLU(),
                                 Linear(4, 4), Times(), Linear(4, 4));
             }}),
    [](const auto& info) { return info.param.name; });

TEST(MemoryProfileTest, ChangesNothing) {
  BatchNorm1d norm(4);
  Sequential model(Linear(4, 4), norm, Dropout(0.5));
  model->eval();
  const Tensor input = torch::ones({8, 4});
  torch::manual_seed(1);
  const Tensor expected = torch::rand({3});
  torch::manual_seed(1);
  profile_memory(model, input);
  EXPECT_TRUE(torch::rand({3}).equal(expected));
  EXPECT_FALSE(model->is_training());
  EXPECT_FALSE(norm->is_training());
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  EXPECT_TRUE(norm->running_mean.equal(torch::zeros({4})));
  EXPECT_TRUE(input.equal(torch::ones({8, 4})));
  EXPECT_FALSE(model->parameters()[0].grad().defined());
}

TEST(MemoryProfileTest, TakesModelsOfAnySize) {
  const auto model = [] {
    const MetaGuard meta;
    return Sequential(Linear(1'000'000, 1'000'000), ReLU());
  }();
  const MemoryProfile profile =
      profile_memory(model, torch::empty({1000, 1'000'000}, torch::kMeta));
  EXPECT_EQ(profile.layers[0].parameter_bytes, 4'000'004'000'000);
  EXPECT_EQ(saved_bytes(profile, 0, 2), 8'000'000'000);
}

TEST(MemoryProfileTest, KnowsTuplesAndTensorsWithoutGradient) {
  const auto pair = layer<std::tuple<Tensor, Tensor>>([](Tensor x) {
    return std::tuple(x.exp(), x.detach().to(torch::kDouble));
  });
  const MemoryProfile profile =
      profile_of(Sequential(Linear(4, 4), pair, testing::EndMask()));
  EXPECT_EQ(profile.layers[1].output_bytes, 8 * 4 * (4 + 8));
  EXPECT_EQ(incoming_bytes(profile, 2, 3), 8 * 4 * (4 + 8));
  EXPECT_EQ(saved_bytes(profile, 1, 2), 8 * 4 * 4);  // exp keeps its result
}

TEST(MemoryProfileTest, NamesWhatDoesNotFit) {
  EXPECT_THAT([] { profile_memory(Sequential(nullptr), torch::ones({1})); },
              ThrowsMessage<c10::ValueError>(HasSubstr("null")));
  EXPECT_THROW(profile_memory(Sequential(KeepInput()), torch::ones({1})),
               c10::TypeError);
  EXPECT_THROW(profile_memory(Sequential(Linear(4, 4)), 7), c10::TypeError);
  EXPECT_THAT(
      [] {
        profile_memory(Sequential(Linear(4, 4), Linear(5, 4)),
                       torch::ones({1, 4}));
      },
      ThrowsMessage<c10::Error>(HasSubstr("in layer 1 ('1', torch::nn::Linear"
                                          "Impl), which ran on the meta "
                                          "device")));
}

// ---- What operators keep for backward

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
  const MemoryProfile profile = profile_of(Sequential(Perceptron()));
  // The second Linear keeps the result of ReLU as well.
  EXPECT_EQ(kept(profile, 0), (Bytes{{"AddmmBackward0", kRows * 4 * kFloat},
                                     {"ReluBackward0", kRows * 16 * kFloat}}));
}

TEST(OperatorMemoryTest, CountsATensorOfTwoLayersInEachOfThem) {
  const MemoryProfile profile =
      profile_of(Sequential(Linear(4, 16), ReLU(), Linear(16, 2)));
  constexpr int64_t kWide = kRows * 16 * kFloat;
  EXPECT_EQ(kept(profile, 0), (Bytes{{"AddmmBackward0", kRows * 4 * kFloat}}));
  EXPECT_EQ(kept(profile, 1), (Bytes{{"ReluBackward0", kWide}}));
  EXPECT_EQ(kept(profile, 2), (Bytes{{"AddmmBackward0", kWide}}));
  EXPECT_EQ(saved_bytes(profile, 1, 3), kWide);
}

TEST(OperatorMemoryTest, HasTheStatisticsOfBatchNormAndTheNoiseOfDropout) {
  const MemoryProfile profile =
      profile_of(Sequential(Linear(4, 16), BatchNorm1d(16), Dropout(0.5)));
  EXPECT_EQ(
      kept(profile, 1),
      (Bytes{{"NativeBatchNormBackward0", (kRows * 16 + 2 * 16) * kFloat}}));
  EXPECT_EQ(kept(profile, 2), (Bytes{{"MulBackward0", kRows * 16 * kFloat}}));
}

TEST(OperatorMemoryTest, HasTheInputAndTheWeightsOfAttention) {
  constexpr int64_t kTokens = 5, kWidth = 3;
  const auto attention = layer([](Tensor x) {
    return torch::bmm(torch::softmax(torch::bmm(x, x.transpose(1, 2)), -1), x);
  });
  const MemoryProfile profile =
      profile_memory(Sequential(Linear(kWidth, kWidth), attention),
                     torch::ones({kRows, kTokens, kWidth}));
  EXPECT_EQ(kept(profile, 1),
            (Bytes{{"BmmBackward0", kRows * kTokens * kWidth * kFloat},
                   {"SoftmaxBackward0", kRows * kTokens * kTokens * kFloat}}));
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

torch::nn::AnyModule own_layer() {
  return layer([](Tensor x) { return OwnFunction::apply(x); });
}

TEST(OperatorMemoryTest, HasAllThatAFunctionOfTheUserKeeps) {
  const MemoryProfile profile =
      profile_of(Sequential(Linear(4, 4), own_layer()));
  EXPECT_THAT(kept(profile, 1),
              ElementsAre(::testing::Pair(EndsWith("::OwnFunction"),
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
  const MemoryProfile profile =
      profile_of(Sequential(Linear(4, 4), Recomputing()));
  EXPECT_EQ(kept(profile, 1), (Bytes{{"AddmmBackward0", kRows * 4 * kFloat}}));
}

TEST(OperatorMemoryTest, HasNothingForALayerThatKeepsNothing) {
  const MemoryProfile profile =
      profile_of(Sequential(Linear(4, 4), torch::nn::Flatten()));
  EXPECT_THAT(kept(profile, 1), IsEmpty());
}

TEST(OperatorMemoryTest, AddsUpToTheBytesOfTheLayer) {
  const MemoryProfile profile = profile_of(
      Sequential(Perceptron(), Linear(2, 4), own_layer(), BatchNorm1d(4),
                 Dropout(0.5), Recomputing(), torch::nn::GELU()));
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
