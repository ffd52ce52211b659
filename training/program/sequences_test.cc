// Tests of training and evaluation on sequences, with --bucket.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/testing/files.h"
#include "training/program/language.h"
#include "training/program/make_task.h"
#include "training/program/testing/small_runs.h"
#include "training/testing/image_files.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::new_folder;

constexpr int64_t kNone = -100;

Options bucket_options() {
  Options options = small_options("transformer");
  options.transformer_dropout = 0;
  options.bucket = 4;
  options.batch = 10;
  options.chunks = 3;
  options.run_dir = new_folder() + "run";
  return options;
}

// Returns the targets of a row without padding.
std::vector<int64_t> tokens_of(const at::Tensor& targets) {
  const at::Tensor valid = targets.masked_select(targets.ne(kNone));
  const auto* begin = valid.const_data_ptr<int64_t>();
  return {begin, begin + valid.numel()};
}

// The loss and the gradient of a step are those of each sequence on its own,
// without padding: the sum over all tokens, divided by their number.
TEST(SequencesTest, AStepIsThePlainSumOverTokensByTheirNumber) {
  Options options = bucket_options();
  options.optimizer = "sgd";
  options.momentum = 0;
  options.weight_decay = 0;
  options.lr = 1;
  options.accumulate = 2;
  options.steps = 1;
  const auto task = make_task(options);
  torch::manual_seed(options.seed);
  auto model = task->model();
  run_here(options, *task);

  at::Tensor sum = at::zeros({}, at::kDouble);
  int64_t count = 0;
  for (const Sample& part : task->train_parts({0, 20}, 6)) {
    for (int64_t row = 0; row < part.target.size(0); ++row) {
      const auto size =
          static_cast<int64_t>(tokens_of(part.target[row]).size());
      const at::Tensor logits =
          model->forward(part.input.slice(0, row, row + 1).slice(1, 0, size));
      sum = sum +
            torch::nn::functional::cross_entropy(
                logits[0].to(at::kDouble), part.target[row].slice(0, 0, size),
                torch::nn::functional::CrossEntropyFuncOptions().reduction(
                    torch::kSum));
      count += size;
    }
  }
  const at::Tensor loss = sum / static_cast<double>(count);
  loss.backward();
  EXPECT_NEAR(std::stod(logged(options.run_dir, 1, "loss")),
              loss.item<double>(), 1e-6);
  const StateDict after = state_in(options.run_dir).model;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor expected = item.value().detach() - item.value().grad();
    EXPECT_LT((after[item.key()] - expected).abs().max().item<double>(), 2e-6)
        << item.key();
  }
}

TEST(SequencesTest, EachLineIsTrainedOnOncePerEpochAndTheLastAreTested) {
  Options options = bucket_options();
  options.data_dir = new_folder() + "lines.txt";
  options.length = 8;
  options.batch = 6;
  std::string text;
  std::vector<std::vector<int64_t>> lines;
  // Line k has k % 5 letters, and the line end. Tokens: '\n' is 0, 'a' is 1.
  for (int64_t k = 0; k < 20; ++k) {
    lines.emplace_back();
    for (int64_t n = 0; n < k % 5; ++n) {
      text.push_back(static_cast<char>('a' + (k + n) % 7));
      lines.back().push_back(1 + (k + n) % 7);
    }
    text.push_back('\n');
    lines.back().push_back(0);
  }
  data::write_bytes(options.data_dir, text);
  options.held_out = 0.1;
  const auto task = make_task(options);
  EXPECT_EQ(task->data(),
            "18 sequences of 51 characters for training and 2 of 9 for "
            "testing, 8 different ones, cut at 8");
  EXPECT_EQ(task->rows_name(), "sequences");
  EXPECT_EQ(task->train_batches(), 3);

  std::map<std::vector<int64_t>, int> expected;
  for (int64_t k = 0; k < 18; ++k) ++expected[lines[k]];
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::map<std::vector<int64_t>, int> seen;
    for (int64_t step = 3 * epoch; step < 3 * epoch + 3; ++step) {
      for (const auto& part : task->train_parts({6 * step, 6 * step + 6}, 2)) {
        for (const at::Tensor& row : part.target.unbind()) {
          ++seen[tokens_of(row)];
        }
      }
    }
    EXPECT_EQ(seen, expected);
  }
  ASSERT_EQ(task->test_batches(), 1);
  const Sample test = task->test_batch(0);
  EXPECT_EQ(tokens_of(test.target[0]), lines[18]);
  EXPECT_EQ(tokens_of(test.target[1]), lines[19]);
}

TEST(SequencesTest, EvaluationScoresTheTokensOfAllHeldOutSequences) {
  Options options = bucket_options();
  options.batch = 300;  // does not divide the test set
  options.steps = 2;
  options.eval_every = 2;
  const auto task = make_task(options);
  run_here(options, *task);
  const Score score = plain_score(options.run_dir, *task, task->model());
  int64_t tokens = 0;
  for (int64_t k = 0; k < task->test_batches(); ++k) {
    tokens += task->test_batch(k).target.ne(kNone).sum().item<int64_t>();
  }
  EXPECT_EQ(score.items, tokens);
  EXPECT_NE(task->data().find(" of " + std::to_string(tokens) + " for testing"),
            std::string::npos);
  EXPECT_NEAR(std::stod(logged(options.run_dir, 2, "test_loss")),
              score.loss / score.items, 1e-6);
}

}  // namespace
}  // namespace gpipe::train_program
