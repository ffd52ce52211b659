#include "gpipe/first_output.h"

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/recomputed.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/errors.h"
#include "gpipe/testing/models.h"

namespace gpipe {
namespace {

using testing::error_of;
using torch::Tensor;
using torch::nn::LSTM;
using torch::nn::LSTMOptions;
using torch::nn::Sequential;

LSTM lstm() { return LSTM(LSTMOptions(4, 6).batch_first(true)); }

struct ManyImpl : torch::nn::Module {
  std::tuple<std::vector<Tensor>, int> forward(std::vector<Tensor> x) {
    return {std::vector<Tensor>(x.rbegin(), x.rend()), 3};
  }
};
TORCH_MODULE(Many);

TEST(FirstOutput, IsTheFirstTensorOfAnLstm) {
  torch::manual_seed(1);
  LSTM layer = lstm();
  const Tensor x = torch::randn({2, 5, 4});
  Sequential model(first_output(layer), torch::nn::Linear(6, 1));
  const Tensor expected = model->ptr(1)->as<torch::nn::Linear>()->forward(
      std::get<0>(layer->forward(x)));
  EXPECT_TRUE(torch::equal(model->forward(x), expected));
  EXPECT_EQ(model->named_parameters().keys()[0], "0.weight_ih_l0");
  std::ostringstream text;
  text << *model;
  EXPECT_NE(text.str().find("(0): FirstOutput(torch::nn::LSTM("),
            std::string::npos)
      << text.str();
}

TEST(FirstOutput, KeepsTheInputTypeAndLooksIntoNestedOutputs) {
  Sequential model(first_output(Many()));
  const std::vector<Tensor> x = {torch::ones({1}), torch::zeros({2})};
  EXPECT_TRUE(torch::equal(model->forward(x), x[1]));
  EXPECT_EQ(error_of([&] { model->forward(std::vector<Tensor>()); }),
            "c10::ValueError: first_output(): the layer returned an empty "
            "vector");
  EXPECT_EQ(error_of([] { first_output(LSTM(nullptr)); }),
            "c10::ValueError: first_output() got a null layer");
}

TEST(FirstOutput, RunsInAPipelineAndRecomputed) {
  std::vector<std::vector<Tensor>> all;
  const Tensor input = torch::randn({4, 5, 4}, torch::kDouble);
  for (const bool piped : {false, true}) {
    torch::manual_seed(2);
    const LSTM one = lstm();
    const LSTM two(LSTMOptions(6, 6).batch_first(true));
    Sequential model(first_output(one), Recomputed(first_output(two)),
                     torch::nn::Linear(6, 1));
    model->to(torch::kDouble);
    Tensor y;
    if (piped) {
      GPipe pipeline(model, testing::options({1, 2}, 2, Checkpoint::kAlways));
      y = pipeline->forward(input.to(testing::device()));
      y.pow(2).sum().backward();
    } else {
      model->to(testing::reference_device());
      const auto parts = input.to(testing::reference_device()).chunk(2);
      y = torch::cat({model->forward(parts[0]), model->forward(parts[1])});
      y.pow(2).sum().backward();
    }
    all.push_back(testing::grads_of(*model));
    all.back().push_back(y.detach());
  }
  EXPECT_EQ(testing::difference(all[0], all[1], 1e-12, 1e-12), "");
}

TEST(FirstOutput, IsNamedInTheErrorOfALayerThatNeedsIt) {
  GPipe pipeline(Sequential(lstm()), testing::options({1}));
  EXPECT_NE(error_of([&] {
              pipeline->forward(torch::ones({2, 5, 4}).to(testing::device()));
            }).find("use gpipe::first_output(layer) (gpipe/first_output.h)"),
            std::string::npos);
}

}  // namespace
}  // namespace gpipe
