// Tests the main promise: a pipeline gives the results of the plain Sequential.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::difference;
using testing::distance;
using testing::kModes;
using testing::options;
using testing::plain_step;
using testing::StepState;
using testing::training_step;
using torch::Tensor;

// Returns every cut of `layers` layers into at most 4 partitions.
std::vector<std::vector<int64_t>> balances(int64_t layers) {
  std::vector<std::vector<int64_t>> all;
  const std::function<void(std::vector<int64_t>, int64_t)> cut =
      [&](std::vector<int64_t> head, int64_t left) {
        if (left == 0) return all.push_back(head);
        if (head.size() == 4) return;
        for (int64_t next = 1; next <= left; ++next) {
          auto longer = head;
          longer.push_back(next);
          cut(longer, left - next);
        }
      };
  cut({}, layers);
  return all;
}

std::string name(const std::vector<int64_t>& balance, int64_t chunks,
                 Checkpoint mode) {
  std::string text = "balance [";
  for (const int64_t each : balance) text += " " + std::to_string(each);
  return text + " ], chunks " + std::to_string(chunks) + ", mode " +
         std::to_string(static_cast<int>(mode));
}

struct Case {
  const char* name;
  torch::nn::Sequential (*model)();
  std::vector<int64_t> input;
  bool every_balance;
};

class Transparency : public ::testing::TestWithParam<Case> {};

StepState pipeline_step(const Case& test, const std::vector<int64_t>& balance,
                        int64_t chunks, Checkpoint mode, const Tensor& input,
                        uint64_t seed) {
  torch::manual_seed(1);
  auto model = test.model();
  GPipe pipeline(model,
                 options(balance, chunks, mode).threads_per_partition(1));
  torch::manual_seed(seed);
  return training_step(pipeline, input);
}

TEST_P(Transparency, EqualsPlainAccumulationForAnyCutAndMode) {
  const Case& test = GetParam();
  torch::set_num_threads(1);
  torch::manual_seed(0);
  auto shape = test.input;
  const Tensor input = torch::randn(shape, torch::kDouble);
  torch::manual_seed(1);
  const auto layers = static_cast<int64_t>(test.model()->size());
  for (const int64_t chunks : {1, 2, 3, 8}) {
    torch::manual_seed(1);
    const auto plain = plain_step(test.model(), input, chunks);
    std::unique_ptr<StepState> first;
    for (const auto& balance : balances(layers)) {
      if (!test.every_balance && balance[0] % 3 != 0) continue;
      for (const Checkpoint mode : kModes) {
        const auto state =
            pipeline_step(test, balance, chunks, mode, input, /*seed=*/7);
        SCOPED_TRACE(name(balance, chunks, mode));
        ASSERT_LE(distance(state, plain), 1e-12);
        if (!first) first = std::make_unique<StepState>(state);
        ASSERT_EQ(difference(state, *first), "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Transparency,
    ::testing::Values(Case{"Linear", testing::linear_model, {13, 6}, true},
                      Case{"Skip", testing::skip_model, {9, 4}, true},
                      Case{"Conv",
                           [] { return testing::conv_model(); },
                           {10, 3, 8, 8},
                           false}),
    [](const auto& info) { return info.param.name; });

// Only BatchNorm has the effect "same batch, other number of micro-batches,
// other result" (kakaobrain/torchgpipe issue 35).
TEST(Transparency, DoesNotDependOnTheNumberOfMicrobatches) {
  torch::set_num_threads(1);
  const Case cases[] = {{"", testing::linear_model, {13, 6}, true},
                        {"", testing::skip_model, {13, 4}, true}};
  for (const Case& test : cases) {
    torch::manual_seed(0);
    const Tensor input = torch::randn(test.input, torch::kDouble);
    const auto layers = static_cast<int64_t>(test.model()->size());
    const auto whole =
        pipeline_step(test, {layers}, 1, Checkpoint::kNever, input, /*seed=*/7);
    for (const int64_t chunks : {2, 3, 5, 8, 13, 20}) {
      for (const Checkpoint mode : kModes) {
        EXPECT_LE(distance(pipeline_step(test, {2, layers - 2}, chunks, mode,
                                         input, /*seed=*/7),
                           whole),
                  1e-12);
      }
    }
  }
}

// Dropout, statistics and gradients equal those of training without evaluation.
TEST(Transparency, EvaluationInBetweenChangesNothing) {
  torch::set_num_threads(1);
  torch::manual_seed(0);
  const Tensor input = torch::randn({10, 3, 8, 8}, torch::kDouble);
  for (const Checkpoint mode : kModes) {
    const auto train = [&](bool evaluate) {
      torch::manual_seed(1);
      auto model = testing::conv_model(0.4);
      GPipe pipeline(model, options({3, 5}, 3, mode).threads_per_partition(1));
      torch::optim::SGD optimizer(pipeline->parameters(), 0.1);
      StepState state;
      for (int step = 0; step < 3; ++step) {
        state = training_step(pipeline, input);
        optimizer.step();
        if (!evaluate) continue;
        pipeline->eval();
        for (const bool with_graph : {false, true}) {
          const torch::AutoGradMode mode_of_grad(with_graph);
          pipeline->forward(input.slice(0, 0, 7).to(testing::device()));
        }
        pipeline->train();
      }
      return state;
    };
    EXPECT_EQ(difference(train(true), train(false)), "");
  }
}

TEST(Transparency, IsBitEqualToAccumulationInReverseOrder) {
  torch::set_num_threads(1);
  for (const auto& make : {testing::linear_model, testing::skip_model}) {
    torch::manual_seed(0);
    auto model = make();
    const int64_t width = model->parameters()[0].size(1);
    const Tensor input = torch::randn({8, width}, torch::kDouble);
    const auto plain = plain_step(model, input, 4);
    for (const auto& balance : balances(static_cast<int64_t>(model->size()))) {
      GPipe pipeline(model, options(balance, 4).threads_per_partition(1));
      const auto state = training_step(pipeline, input);
      ASSERT_EQ(difference(state, plain), "")
          << name(balance, 4, Checkpoint::kExceptLast);
    }
  }
}

TEST(Dropout, IsBitEqualBetweenBalancesAndModes) {
  const Case test{
      "", [] { return testing::conv_model(0.4); }, {10, 3, 8, 8}, true};
  torch::manual_seed(0);
  const Tensor input = torch::randn(test.input, torch::kDouble);
  for (const int64_t chunks : {1, 3}) {
    std::unique_ptr<StepState> first;
    for (const std::vector<int64_t>& balance :
         std::vector<std::vector<int64_t>>{
             {8}, {4, 4}, {3, 3, 2}, {1, 3, 2, 2}}) {
      for (const Checkpoint mode : kModes) {
        const auto state =
            pipeline_step(test, balance, chunks, mode, input, /*seed=*/7);
        if (!first) first = std::make_unique<StepState>(state);
        ASSERT_EQ(difference(state, *first), "") << name(balance, chunks, mode);
      }
    }
    const auto other_seed =
        pipeline_step(test, {4, 4}, chunks, Checkpoint::kNever, input, 8);
    EXPECT_EQ(difference(other_seed, *first), "output");
  }
}

}  // namespace
}  // namespace gpipe
