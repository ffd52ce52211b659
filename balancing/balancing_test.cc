#include "balancing/balancing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gpipe/testing/layers.h"
#include "gpipe/testing/thrown.h"

namespace gpipe::balancing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::nn::Sequential;

Sequential sleepers(const std::vector<int>& milliseconds) {
  Sequential model;
  for (const int time : milliseconds) {
    model->push_back(testing::layer([time](torch::Tensor x) {
      std::this_thread::sleep_for(std::chrono::milliseconds(time));
      return x;
    }));
  }
  return model;
}

std::string error_of_cut(int64_t partitions, const Sequential& module) {
  return testing::thrown<c10::ValueError>(
      [&] { balance_by_time(partitions, module, torch::ones({1})); });
}

TEST(BalanceByTimeTest, PutsSlowLayersIntoSmallPartitions) {
  const auto options = TimeOptions().timeout(0);
  EXPECT_THAT(balance_by_time(2, sleepers({10, 20, 30, 40, 50, 60}),
                              torch::ones({1}), options),
              ElementsAre(4, 2));
  EXPECT_THAT(balance_by_time(2, sleepers({60, 50, 40, 30, 20, 10}),
                              torch::ones({1}), options),
              ElementsAre(2, 4));
}

TEST(BalanceByTimeTest, MeasuresForASecondUnlessTold) {
  const auto start = std::chrono::steady_clock::now();
  balance_by_time(1, sleepers({1}), torch::ones({1}));
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

TEST(BalanceByTimeTest, TakesTuplesAndVectors) {
  struct Swap : torch::nn::Module {
    using Pair = std::tuple<torch::Tensor, torch::Tensor>;
    Pair forward(Pair pair) { return {std::get<1>(pair), std::get<0>(pair)}; }
  };
  struct Reverse : torch::nn::Module {
    std::vector<torch::Tensor> forward(std::vector<torch::Tensor> tensors) {
      return {tensors.rbegin(), tensors.rend()};
    }
  };
  const auto options = TimeOptions().timeout(0);
  const auto x = torch::ones({2});
  EXPECT_THAT(balance_by_time(2, Sequential(Swap(), Swap()),
                              std::make_tuple(x, x), options),
              ElementsAre(1, 1));
  EXPECT_THAT(balance_by_time(2, Sequential(Reverse(), Reverse()),
                              std::vector<torch::Tensor>{x, x}, options),
              ElementsAre(1, 1));
}

TEST(BalanceByTimeTest, RefusesPartitionsThatCannotBe) {
  EXPECT_THAT(error_of_cut(3, sleepers({0, 0})),
              HasSubstr("2 layers into 3 partitions"));
}

TEST(BalanceByTimeTest, RefusesAModelWithGradients) {
  Sequential model;
  model->push_back("first", torch::nn::Linear(1, 1));
  model->push_back("second", torch::nn::Linear(1, 1));
  model->ptr(1)->parameters()[1].mutable_grad() = torch::zeros({1});
  EXPECT_THAT(error_of_cut(2, model),
              HasSubstr("some parameter already has a gradient: second.bias"));
  EXPECT_THROW(balance_by_size(2, model, torch::ones({1, 1})), c10::ValueError);
}

// Returns a layer that keeps `count` tensors of the size of its input for
// backward.
torch::nn::AnyModule keeper(int count) {
  return testing::layer([count](torch::Tensor x) {
    for (int k = 0; k < count; ++k) x = x.exp();
    return x;
  });
}

Sequential keepers(const std::vector<int>& counts) {
  Sequential model;
  for (const int count : counts) model->push_back(keeper(count));
  return model;
}

torch::Tensor wanting_gradients(std::vector<int64_t> sizes) {
  return torch::ones(sizes).requires_grad_();
}

TEST(BalanceBySizeTest, PutsLayersThatKeepMuchIntoSmallPartitions) {
  const auto input = wanting_gradients({10, 100});
  EXPECT_THAT(balance_by_size(2, keepers({1, 2, 3, 4, 5, 6}), input),
              ElementsAre(4, 2));
  EXPECT_THAT(balance_by_size(2, keepers({6, 5, 4, 3, 2, 1}), input),
              ElementsAre(2, 4));
}

// Layer k has (k + 1) (k + 2) + k + 2 parameters.
Sequential growing(bool reversed) {
  Sequential model;
  for (int k = 0; k < 6; ++k) {
    const int in = reversed ? 7 - k : k + 1;
    model->push_back(torch::nn::Linear(in, reversed ? in - 1 : in + 1));
  }
  return model;
}

TEST(BalanceBySizeTest, PutsLayersWithManyParametersIntoSmallPartitions) {
  const auto options = SizeOptions().param_scale(100);
  EXPECT_THAT(balance_by_size(2, growing(false), torch::ones({7, 1}), options),
              ElementsAre(4, 2));
  EXPECT_THAT(balance_by_size(2, growing(true), torch::ones({7, 7}), options),
              ElementsAre(2, 4));
}

// From layer to layer, kept memory falls while parameters rise.
struct BothImpl : torch::nn::Module {
  explicit BothImpl(int k) : keep(7 - k) {
    register_parameter("weight", torch::ones({10 * k}));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (int k = 0; k < keep; ++k) x = x.exp();
    return x;
  }
  const int keep;
};
TORCH_MODULE(Both);

TEST(BalanceBySizeTest, WeighsParametersAsTold) {
  Sequential model;
  for (int k = 1; k <= 6; ++k) model->push_back(Both(k));
  const auto input = wanting_gradients({7, 10});
  EXPECT_THAT(balance_by_size(2, model, input, SizeOptions().param_scale(0)),
              ElementsAre(2, 4));
  EXPECT_THAT(balance_by_size(2, model, input, SizeOptions().param_scale(100)),
              ElementsAre(4, 2));
}

TEST(BalanceBySizeTest, CountsFrozenParametersOnce) {
  Sequential model;
  for (int k = 0; k < 4; ++k) model->push_back(torch::nn::Linear(30, 30));
  const auto options = SizeOptions().param_scale(4);
  const auto input = torch::ones({1, 30});
  EXPECT_THAT(balance_by_size(2, model, input, options), ElementsAre(2, 2));
  // 4 and 1 + 1 + 1.
  for (int k = 1; k < 4; ++k) {
    for (auto& weight : model->ptr(k)->parameters())
      weight.requires_grad_(false);
  }
  EXPECT_THAT(balance_by_size(2, model, input, options), ElementsAre(1, 3));
}

TEST(BalanceBySizeTest, CountsTheMemoryOfOneMicroBatch) {
  // Per byte in a row of the input there are 6 bytes of parameters.
  Sequential model;
  model->push_back(Both(6));
  model->push_back(keeper(4));
  model->push_back(keeper(4));
  model->push_back(keeper(4));
  const auto input = wanting_gradients({8, 10});
  const auto options = SizeOptions().param_scale(4);
  EXPECT_THAT(balance_by_size(2, model, input, options), ElementsAre(2, 2));
  EXPECT_THAT(balance_by_size(2, model, input, SizeOptions(options).chunks(8)),
              ElementsAre(1, 3));
}

TEST(BalanceBySizeTest, AMicroBatchHasUnsplitElementsWhole) {
  Sequential model;
  using Pair = std::tuple<torch::Tensor, torch::Tensor>;
  model->push_back(testing::layer<torch::Tensor, Pair>([](Pair shared_and_x) {
    return std::get<1>(shared_and_x) + std::get<0>(shared_and_x).sum();
  }));
  model->push_back(Both(6));
  for (int k = 0; k < 3; ++k) model->push_back(keeper(4));
  const auto input =
      std::make_tuple(torch::ones({3}), wanting_gradients({8, 10}));
  const auto options = SizeOptions().param_scale(4).chunks(8);
  EXPECT_THAT(
      balance_by_size(2, model, input, SizeOptions(options).unsplit({0})),
      ElementsAre(2, 3));
  EXPECT_THAT([&] { balance_by_size(2, model, input, options); },
              ThrowsMessage<c10::ValueError>(HasSubstr("(sizes: 3 8)")));
  EXPECT_THAT(
      [&] {
        balance_by_size(2, model, input, SizeOptions(options).unsplit({2}));
      },
      ThrowsMessage<c10::ValueError>(HasSubstr("unsplit names element 2")));
}

// A layer without clone() that gives its parameters and buffers other memory,
// sizes and values in each forward.
struct RewritingImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    mask = torch::ones({x.size(1)});
    last.set_data(x.detach().clone());
    resized.resize_({x.size(0)}).fill_(5);
    weight.set_data(weight.detach().clamp(-1, 1));
    return x * mask * weight;
  }
  torch::Tensor last = register_buffer("last", torch::zeros({0, 3}));
  torch::Tensor resized = register_buffer("resized", torch::ones({1}));
  torch::Tensor weight = register_parameter("weight", torch::full({3}, 3.f));
  // The last one, since a later registration moves the entries.
  torch::Tensor& mask = register_buffer("mask", torch::zeros({0}));
};
TORCH_MODULE(Rewriting);

using Balance = std::function<void(const Sequential&, const torch::Tensor&)>;

void expect_unchanged_by(const Balance& balance) {
  Rewriting layer;
  Sequential model(torch::nn::Linear(3, 3), layer);
  const auto buffers = layer->buffers();
  const auto x = torch::ones({4, 3});
  balance(model, x);
  const auto after = layer->buffers();
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    EXPECT_TRUE(after[k].is_same(buffers[k])) << k;
  }
  EXPECT_TRUE(layer->mask.equal(torch::zeros({0})));
  EXPECT_TRUE(layer->last.equal(torch::zeros({0, 3})));
  EXPECT_TRUE(layer->resized.equal(torch::ones({1})));
  EXPECT_TRUE(layer->weight.equal(torch::full({3}, 3.f)));
  EXPECT_TRUE(layer->forward(x).equal(torch::ones({4, 3})));
}

TEST(BalanceByTimeTest, LeavesALayerThatChangesItsTensors) {
  expect_unchanged_by([](const Sequential& model, const torch::Tensor& x) {
    balance_by_time(2, model, x, TimeOptions().timeout(0));
  });
}

TEST(BalanceBySizeTest, LeavesALayerThatChangesItsTensors) {
  expect_unchanged_by([](const Sequential& model, const torch::Tensor& x) {
    balance_by_size(2, model, x);
  });
}

TEST(BalanceBySizeTest, RefusesWhatItCannotDo) {
  const auto model = growing(false);
  const auto input = torch::ones({7, 1});
  EXPECT_THROW(balance_by_size(0, model, input), c10::ValueError);
  EXPECT_THROW(balance_by_size(7, model, input), c10::ValueError);
  EXPECT_THROW(balance_by_size(2, model, input, SizeOptions().chunks(0)),
               c10::ValueError);
  for (const double scale : {-1.0, std::nan("")}) {
    EXPECT_THROW(
        balance_by_size(2, model, input, SizeOptions().param_scale(scale)),
        c10::ValueError);
  }
  EXPECT_THROW(balance_by_size(2, model, 3), c10::TypeError);
}

}  // namespace
}  // namespace gpipe::balancing
