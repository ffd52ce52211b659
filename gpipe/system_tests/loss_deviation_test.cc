// Measures how far the gradients of a language model are from those of plain
// LibTorch over the whole mini-batch, for several ways to write the loss.
// Prints the table of docs/losses.md:
//
//   ./bazelw test //gpipe/system_tests:cpu_tests --test_output=all
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/functional/padding.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gpipe/gpipe.h"
#include "gpipe/schedule.h"
#include "gpipe/testing/layers.h"
#include "training/autocast.h"
#include "training/grad_scaler.h"

namespace gpipe {
namespace {

using testing::kIgnored;
using testing::Sequences;
using torch::Tensor;
namespace F = torch::nn::functional;

constexpr int64_t kRows = 8;

Sequences batch() { return testing::sequences(testing::token_lengths(), 1); }

// Returns `sequences` as one tensor [rows, longest], filled up with `padding`.
Tensor padded(const std::vector<Tensor>& sequences, int64_t padding) {
  int64_t longest = 0;
  for (const Tensor& each : sequences) {
    longest = std::max(longest, each.size(1));
  }
  std::vector<Tensor> rows;
  for (const Tensor& each : sequences) {
    rows.push_back(F::pad(
        each, F::PadFuncOptions({0, longest - each.size(1)}).value(padding)));
  }
  return torch::cat(rows);
}

// Returns the number of targets that count.
int64_t valid(const Tensor& target) {
  return (target != kIgnored).sum().item<int64_t>();
}

// Returns the mean over the targets that count. Without any it is NaN, but
// LibTorch passes gradients of zero back.
Tensor mean(const Tensor& logits, const Tensor& target) {
  return F::cross_entropy(logits.flatten(0, 1), target.flatten(),
                          F::CrossEntropyFuncOptions().ignore_index(kIgnored));
}

// Returns the same mean, by a mask. Without targets that count, NaN is passed
// back, too.
Tensor masked_mean(const Tensor& logits, const Tensor& target) {
  const Tensor mask = (target != kIgnored).flatten().to(logits.dtype());
  const Tensor each =
      F::cross_entropy(logits.flatten(0, 1), target.flatten().clamp_min(0),
                       F::CrossEntropyFuncOptions().reduction(torch::kNone));
  return (each * mask).sum() / mask.sum();
}

Tensor mean_or_zero(const Tensor& logits, const Tensor& target) {
  const Tensor count = (target != kIgnored).sum().clamp_min(1);
  return testing::token_loss_sum(logits, target) / count;
}

// The factor of a loop that adds up the gradients of parts of a mini-batch.
Tensor mean_times_share(const Tensor& logits, const Tensor& target) {
  return mean(logits, target) * target.size(0) / kRows;
}

Tensor sum_per_row(const Tensor& logits, const Tensor& target) {
  return testing::token_loss_sum(logits, target) / target.size(0);
}

WeightedLoss weighted_over_1024(const Tensor& logits, const Tensor& target) {
  const WeightedLoss loss = testing::token_loss(logits, target);
  return {loss.sum / 1024, loss.weight / 1024.};
}

// Returns the gradients of all parameters as one vector.
Tensor grads_of(const torch::nn::Module& module) {
  std::vector<Tensor> grads;
  for (const Tensor& each : module.parameters()) {
    grads.push_back(each.grad().flatten());
  }
  return torch::cat(grads);
}

// The loss and the gradients of a step.
struct Outcome {
  double loss;
  Tensor grads;
};

// Returns the outcome of one step of two partitions with 1F1B.
template <typename Batch, typename Loss>
Outcome step(torch::nn::Sequential model, const Batch& tokens,
             const Batch& targets, Loss loss, int microbatches) {
  GPipe pipeline(model, GPipeOptions({4, 4})
                            .devices({torch::kCPU, torch::kCPU})
                            .threads_per_partition(1));
  const StepResult result = pipeline->train_step(
      tokens, targets, loss, one_forward_one_backward(2, microbatches));
  return {result.loss.template item<double>(), grads_of(*pipeline)};
}

// Returns |a - b| / |b|.
double deviation(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm()).item<double>();
}

// Returns `value` as a cell of the table.
std::string cell(double value) {
  if (std::isnan(value)) return "NaN";
  char text[32];
  const bool rounding = 0 < value && value < 1e-9;
  std::snprintf(text, sizeof text, rounding ? "%.0e" : "%.3f", value);
  return text;
}

TEST(LossDeviation, IsRoundingAloneForWeightedLossesAndLargeForMeans) {
  const Sequences sequences = batch();
  const Tensor tokens = padded(sequences.tokens, 0);
  const Tensor targets = padded(sequences.targets, kIgnored);
  torch::nn::Sequential plain = testing::token_model();
  const Tensor loss = mean(plain->forward(tokens), targets);
  loss.backward();
  const Tensor expected = grads_of(*plain);

  std::printf("%ld rows of %ld positions; valid tokens per row:",
              static_cast<long>(kRows), static_cast<long>(targets.size(1)));
  for (const Tensor& each : sequences.targets) {
    std::printf(" %ld", static_cast<long>(valid(each)));
  }
  std::printf(
      "\n\n| loss function | micro-batches | loss | deviation |\n"
      "| --- | ---: | ---: | ---: |\n");
  // Prints a line of the table, and returns the deviation of the gradients.
  const auto line = [&](const char* way, int microbatches,
                        const Outcome& outcome) {
    const double off = deviation(outcome.grads, expected);
    std::printf("| %s | %d | %s | %s |\n", way, microbatches,
                cell(outcome.loss).c_str(), cell(off).c_str());
    return off;
  };
  const auto with = [&](auto loss, int microbatches) {
    return step(testing::token_model(), tokens, targets, loss, microbatches);
  };

  line("plain LibTorch, whole mini-batch", 1, {loss.item<double>(), expected});

  const Outcome four = with(mean, 4), eight = with(mean, 8);
  EXPECT_NEAR(line("mean", 4, four), 0.203, 5e-4);
  EXPECT_NEAR(line("mean", 8, eight), 1.015, 5e-4);
  EXPECT_TRUE(std::isnan(eight.loss));

  EXPECT_TRUE(std::isnan(line("masked mean", 8, with(masked_mean, 8))));
  EXPECT_NEAR(
      line("mean, or 0 without a valid token", 8, with(mean_or_zero, 8)), 1.015,
      5e-4);

  const Outcome shares = with(mean_times_share, 4);
  EXPECT_NEAR(line("mean * share of the rows", 4, shares), 0.771, 5e-4);
  EXPECT_TRUE((shares.grads * 4).equal(four.grads));

  EXPECT_NEAR(line("sum / rows", 8, with(sum_per_row, 8)),
              static_cast<double>(valid(targets)) / kRows - 1, 1e-9);

  EXPECT_LT(line("WeightedLoss", 4, with(testing::token_loss, 4)), 1e-13);
  EXPECT_LT(line("WeightedLoss", 8, with(testing::token_loss, 8)), 1e-13);
  const Outcome parts =
      step(testing::token_model(), Microbatches<Tensor>{sequences.tokens},
           Microbatches<Tensor>{sequences.targets}, testing::token_loss, 8);
  EXPECT_LT(line("WeightedLoss, Microbatches without padding", 8, parts),
            1e-13);
}

// Returns the outcome of a step with the rows of batch() as micro-batches.
template <typename Loss>
Outcome step_of_parts(torch::nn::Sequential model, Loss loss) {
  const Sequences sequences = batch();
  return step(std::move(model), Microbatches<Tensor>{sequences.tokens},
              Microbatches<Tensor>{sequences.targets}, loss, 8);
}

TEST(LossDeviation, AConstantInSumAndWeightChangesNoBit) {
  const Outcome one =
      step_of_parts(testing::token_model(), testing::token_loss);
  const Outcome other =
      step_of_parts(testing::token_model(), weighted_over_1024);
  EXPECT_EQ(one.loss, other.loss);
  EXPECT_TRUE(one.grads.equal(other.grads));
}

TEST(LossDeviation, AConstantKeepsScaledSumsFiniteInHalfPrecision) {
  constexpr double kScale = 65536;
  const auto grads = [&](auto loss) {
    torch::nn::Sequential model = testing::token_model();
    model->to(torch::kFloat);
    const GradScaler scaler(GradScalerOptions().init_scale(kScale));
    const AutocastScope autocast(torch::kCPU, torch::kHalf);
    return step_of_parts(model, scaler.scaled(loss)).grads / kScale;
  };
  EXPECT_FALSE(
      grads(testing::token_loss).isfinite().all().template item<bool>());
  const Tensor expected =
      step_of_parts(testing::token_model(), testing::token_loss).grads;
  EXPECT_LT(deviation(grads(weighted_over_1024), expected), 0.01);
}

}  // namespace
}  // namespace gpipe
