// A pipeline computes for each model what a plain loop over its micro-batches
// computes.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/system_tests/options.h"
#include "gpipe/testing/devices.h"
#include "gpipe/testing/models.h"
#include "gpipe/testing/process.h"
#include "models/amoebanet.h"
#include "models/resnet.h"
#include "models/transformer.h"
#include "models/unet.h"

namespace gpipe::models {
namespace {

using testing::difference;
using testing::distance;
using testing::kModes;
using testing::plain_step;
using testing::StepState;
using torch::Tensor;
using torch::nn::Sequential;

struct Case {
  std::string name;
  Sequential (*model)(bool dropout);
  Tensor (*input)();
  std::vector<std::vector<int64_t>> balances;
  bool has_dropout = true;
  testing::Loss loss = testing::sum_of_squares;
  // Whether a step takes a second on the CPU and several on simulated
  // accelerators.
  bool is_large = false;

  std::vector<int64_t> chunks() const {
    const bool few =
        is_large && (!testing::is_thorough() || !testing::device().is_cpu());
    return few ? std::vector<int64_t>{3} : std::vector<int64_t>{1, 3, 8};
  }
  // Returns the first balance to test. Without GPIPE_THOROUGH=1, a large model
  // has no pipeline of one partition, and only the last cut on accelerators.
  std::size_t first_balance() const {
    if (!is_large || testing::is_thorough()) return 0;
    return testing::device().is_cpu() ? 1 : balances.size() - 1;
  }
};

void PrintTo(const Case& test, std::ostream* stream) { *stream << test.name; }

class ModelTransparency : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    // Tests run in parallel: more threads would wait for each other.
    torch::set_num_threads(1);
    torch::manual_seed(2);
    input_ = GetParam().input();
  }

  // Returns the same model with the same weights on each call.
  static Sequential make(bool dropout) {
    torch::manual_seed(1);
    Sequential model = GetParam().model(dropout);
    model->to(torch::kDouble);
    for (const auto& module : model->modules()) {
      if (!dropout && (module->as<torch::nn::Dropout>() ||
                       module->as<torch::nn::Dropout2d>())) {
        module->eval();
      }
    }
    return model;
  }

  StepState pipeline_step(const std::vector<int64_t>& balance, int64_t chunks,
                          Checkpoint mode, bool dropout) const {
    GPipe pipeline(
        make(dropout),
        testing::options(balance, chunks, mode).threads_per_partition(1));
    torch::manual_seed(3);
    return testing::training_step(
        *pipeline, [&](Tensor x) { return pipeline->forward(x); }, input_,
        GetParam().loss);
  }

  // Expects all gradients. The input has one only if it is floating point.
  void expect_all_gradients(const StepState& state) const {
    for (std::size_t k = 0; k < state.grads.size(); ++k) {
      EXPECT_EQ(state.grads[k].defined(), k > 0 || input_.is_floating_point())
          << "gradient " << k;
    }
  }

  Tensor input_;
};

TEST_P(ModelTransparency, EqualsThePlainModelForAnyCutAndMode) {
  for (const bool dropout : {false, true}) {
    if (dropout && !GetParam().has_dropout) continue;
    for (const int64_t chunks : GetParam().chunks()) {
      std::optional<StepState> first;
      const auto& balances = GetParam().balances;
      for (std::size_t k = GetParam().first_balance(); k < balances.size();
           ++k) {
        const auto& balance = balances[k];
        for (const Checkpoint mode : kModes) {
          const auto state = pipeline_step(balance, chunks, mode, dropout);
          if (!first) {
            first = state;
            expect_all_gradients(state);
          }
          EXPECT_EQ(difference(state, *first), "")
              << balance.size() << " partitions, chunks " << chunks << ", mode "
              << static_cast<int>(mode) << ", dropout " << dropout;
        }
      }
      // A pipeline's dropout differs from the plain model's.
      if (dropout) continue;
      const auto plain =
          plain_step(make(/*dropout=*/false), input_, chunks, GetParam().loss);
      EXPECT_LE(distance(*first, plain), 1e-12);
    }
  }
}

template <int64_t... sizes>
Tensor normal() {
  return torch::randn({sizes...}, torch::kDouble);
}

constexpr int64_t kVocabulary = 20;

template <bool tied>
Sequential small_transformer(bool dropout) {
  return transformer(TransformerOptions()
                         .num_layers(2)
                         .width(8)
                         .feed_forward(16)
                         .heads(2)
                         .vocabulary(kVocabulary)
                         .sequence(6)
                         .dropout(dropout ? 0.1 : 0)
                         .attention_dropout(dropout ? 0.1 : 0)
                         .tied_embeddings(tied));
}

Tensor tokens() { return torch::randint(kVocabulary, {8, 6}, torch::kLong); }

// Returns the loss of predicting each token from those before it.
Tensor token_loss(const Tensor& logits, const Tensor& input) {
  const int64_t last = input.size(1) - 1;
  return torch::nn::functional::cross_entropy(
      logits.slice(1, 0, last).flatten(0, 1),
      input.slice(1, 1).flatten().to(logits.device()),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

const std::vector<std::vector<int64_t>> kTransformerBalances = {
    {7}, {3, 4}, {1, 2, 3, 1}};

INSTANTIATE_TEST_SUITE_P(
    Models, ModelTransparency,
    ::testing::Values(Case{"AmoebaNet",
                           [](bool) { return amoebanetd(10, 3, 8); },
                           normal<8, 3, 64, 64>,
                           {{9}, {1, 4, 4}, {2, 3, 3, 1}},
                           /*has_dropout=*/false,
                           testing::sum_of_squares,
                           /*is_large=*/true},
                      Case{"ResNet",
                           [](bool) { return resnet50(10); },
                           normal<8, 3, 40, 40>,
                           {{183}, {70, 60, 53}, {30, 51, 51, 51}},
                           /*has_dropout=*/false,
                           testing::sum_of_squares,
                           /*is_large=*/true},
                      Case{"UNet",
                           [](bool) { return unet(2, 1, 4); },
                           normal<8, 3, 9, 14>,
                           {{29}, {8, 10, 11}, {3, 6, 10, 10}}},
                      Case{"Transformer", small_transformer<false>, tokens,
                           kTransformerBalances, true, token_loss},
                      // Some cuts use the matrix on two devices.
                      Case{"TiedTransformer", small_transformer<true>, tokens,
                           kTransformerBalances, true, token_loss}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpipe::models
