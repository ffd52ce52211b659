// A pipeline does to each model what a plain loop over its micro-batches does.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "models/amoebanet.h"
#include "models/unet.h"

namespace gpipe::models {
namespace {

using torch::Tensor;
using torch::nn::Sequential;

struct Case {
  std::string name;
  Sequential (*model)();
  std::vector<int64_t> input;
  std::vector<std::vector<int64_t>> balances;
};

class ModelTransparency : public ::testing::TestWithParam<Case> {
 protected:
  // One model with the same weights each time.
  static Sequential make(bool dropout) {
    torch::manual_seed(1);
    Sequential model = GetParam().model();
    model->to(torch::kDouble);
    for (const auto& module : model->modules()) {
      auto* layer = module->as<torch::nn::Dropout2d>();
      if (layer && !dropout) layer->eval();
    }
    return model;
  }

  static Tensor input() {
    torch::manual_seed(2);
    return torch::randn(GetParam().input, torch::kDouble).requires_grad_();
  }

  static Tensor loss_of(const Tensor& output) {
    return output.square().sum() / static_cast<double>(GetParam().input[0]);
  }

  // All that a step leaves: output, gradients, buffers.
  static std::vector<Tensor> collect(const torch::nn::Module& module,
                                     const Tensor& output,
                                     const Tensor& input) {
    std::vector<Tensor> state = {output.detach(), input.grad()};
    for (const auto& parameter : module.parameters()) {
      state.push_back(parameter.grad());
    }
    for (const auto& buffer : module.buffers()) state.push_back(buffer);
    return state;
  }

  static std::vector<Tensor> pipeline_step(const std::vector<int64_t>& balance,
                                           int64_t chunks, Checkpoint mode,
                                           bool dropout) {
    GPipe pipeline(make(dropout), GPipeOptions(balance)
                                      .chunks(chunks)
                                      .checkpoint(mode)
                                      .threads_per_partition(1));
    const Tensor x = input();
    const Tensor output = pipeline->forward(x);
    loss_of(output).backward();
    return collect(*pipeline, output, x);
  }

  // The backwards run from the last micro-batch to the first, as a pipeline's
  // do: gradients then add up in the same order.
  static std::vector<Tensor> plain_step(int64_t chunks) {
    Sequential model = make(/*dropout=*/false);
    const Tensor x = input();
    std::vector<Tensor> outputs;
    for (const Tensor& micro_batch : x.chunk(chunks)) {
      outputs.push_back(model->forward(micro_batch));
    }
    for (std::size_t i = outputs.size(); i-- > 0;) {
      loss_of(outputs[i]).backward();
    }
    return collect(*model, torch::cat(outputs), x);
  }
};

// The largest absolute difference, or NaN.
double distance(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    const auto difference = (a[k] - b[k]).abs().max().to(torch::kDouble);
    const double value = difference.item<double>();
    if (!(value <= largest)) largest = value;
  }
  return largest;
}

// Index of the first tensor whose bits differ, or -1.
int first_difference(const std::vector<Tensor>& a,
                     const std::vector<Tensor>& b) {
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (!a[k].equal(b.at(k))) return static_cast<int>(k);
  }
  return -1;
}

TEST_P(ModelTransparency, EqualsThePlainModelForAnyCutAndMode) {
  for (const bool dropout : {false, true}) {
    for (const int64_t chunks : {1, 3, 8}) {
      std::vector<Tensor> first;
      for (const auto& balance : GetParam().balances) {
        for (const Checkpoint mode :
             {Checkpoint::kAlways, Checkpoint::kExceptLast,
              Checkpoint::kNever}) {
          const auto state = pipeline_step(balance, chunks, mode, dropout);
          if (first.empty()) first = state;
          EXPECT_EQ(first_difference(state, first), -1)
              << balance.size() << " partitions, chunks " << chunks << ", mode "
              << static_cast<int>(mode) << ", dropout " << dropout;
        }
      }
      // A pipeline's dropout is not the plain model's.
      if (dropout) continue;
      EXPECT_LE(distance(first, plain_step(chunks)), 1e-12);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ModelTransparency,
    ::testing::Values(Case{"AmoebaNet",
                           [] { return amoebanetd(10, 3, 8); },
                           {8, 3, 64, 64},
                           {{9}, {1, 4, 4}, {2, 3, 3, 1}}},
                      Case{"UNet",
                           [] { return unet(2, 1, 4); },
                           {8, 3, 9, 14},
                           {{29}, {8, 10, 11}, {3, 6, 10, 10}}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpipe::models
