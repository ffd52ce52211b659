#include "balancing/balancing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <chrono>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

namespace gpipe::balancing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using torch::nn::Sequential;

struct SleepImpl : torch::nn::Module {
  explicit SleepImpl(int milliseconds) : milliseconds(milliseconds) {}
  torch::Tensor forward(torch::Tensor x) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return x;
  }
  const int milliseconds;
};
TORCH_MODULE(Sleep);

Sequential sleepers(const std::vector<int>& milliseconds) {
  Sequential model;
  for (int time : milliseconds) model->push_back(Sleep(time));
  return model;
}

std::string error_of(int64_t partitions, const Sequential& module) {
  try {
    balance_by_time(partitions, module, torch::ones({1}));
  } catch (const c10::ValueError& error) {
    return error.msg();
  }
  return "no error";
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
  const Sequential model = sleepers({0, 0});
  EXPECT_THAT(error_of(0, model), HasSubstr("2 layers into 0 partitions"));
  EXPECT_THAT(error_of(-1, model), HasSubstr("2 layers into -1 partitions"));
  EXPECT_THAT(error_of(3, model), HasSubstr("2 layers into 3 partitions"));
  EXPECT_THAT(error_of(1, Sequential()),
              HasSubstr("0 layers into 1 partitions"));
}

TEST(BalanceByTimeTest, RefusesAModelWithGradients) {
  Sequential model;
  model->push_back("first", torch::nn::Linear(1, 1));
  model->push_back("second", torch::nn::Linear(1, 1));
  model->ptr(1)->parameters()[1].mutable_grad() = torch::zeros({1});
  EXPECT_THAT(error_of(2, model),
              HasSubstr("some parameter already has a gradient: second.bias"));
}

}  // namespace
}  // namespace gpipe::balancing
