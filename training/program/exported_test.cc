// Training runs of exported programs, compared with loops without a pipeline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/testing/examples.h"
#include "models/testing/files.h"
#include "models/weights/safetensors.h"
#include "models/weights/state_dict.h"
#include "models/weights/torch_file.h"
#include "training/program/run.h"
#include "training/program/step.h"
#include "training/program/task.h"
#include "training/testing/run_states.h"
#include "training/testing/small_runs.h"

namespace gpipe::train_program {
namespace {

using gpipe::testing::expect_equal;
using gpipe::testing::new_folder;
using gpipe::testing::value_error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

Options options_of(const std::string& name) {
  Options options = small_options("models/exported/testdata/" + name + ".pt2");
  options.size = 0;
  options.steps = 3;
  options.lr = 0.01;
  options.run_dir = new_folder() + name;
  return options;
}

// The losses and the final weights of a run.
struct Results {
  std::vector<double> losses;
  StateDict weights;
};

// Runs the micro-batches one after the other, in one piece.
Results train_without_pipeline(const Options& options) {
  const auto task = make_task(options);
  auto model = task->model();
  const auto optimizer = make_optimizer(options, model->parameters());
  Results results;
  for (int64_t step = 0; step < options.steps; ++step) {
    optimizer->zero_grad();
    const Sample batch = task->train_batch(step, {0, options.batch});
    const auto targets = batch.target.chunk(options.chunks);
    at::Tensor sum, weight;
    for (std::size_t k = 0; k < targets.size(); ++k) {
      const Sample part =
          with_inputs_changed(batch, [&](const at::Tensor& each) {
            return each.chunk(options.chunks)[k];
          });
      const WeightedLoss loss =
          task->loss(part.with_input([&](const auto& input) {
            return model->forward(input);
          }),
                     targets[k]);
      loss.sum.backward();
      sum = k > 0 ? sum + loss.sum.detach() : loss.sum.detach();
      weight = k > 0 ? weight + loss.weight : loss.weight;
    }
    for (at::Tensor& each : model->parameters()) {
      each.mutable_grad() = each.grad() / weight.item<double>();
    }
    optimizer->step();
    results.losses.push_back((sum / weight).item<double>());
  }
  results.weights = state_dict(*model);
  return results;
}

// Expects that a run with a pipeline has the bits of the loop.
void expect_equals_plain_loop(const Options& options) {
  const Ran ran = run_here(options);
  ASSERT_EQ(ran.code, kDone);
  const Results plain = train_without_pipeline(options);
  for (int64_t step = 0; step < options.steps; ++step) {
    const double loss = std::stod(logged(options.run_dir, step + 1, "loss"));
    // The log may round to fewer digits.
    EXPECT_NEAR(loss, plain.losses[step], 1e-5 * plain.losses[step]) << step;
  }
  EXPECT_NE(plain.losses.front(), plain.losses.back());
  expect_equal(state_in(options.run_dir).model, plain.weights);
}

TEST(ExportedRunTest, ATextTrainsWithTheBitsOfAPlainLoop) {
  expect_equals_plain_loop(options_of("letters"));
}

TEST(ExportedRunTest, ImagesTrainWithTheBitsOfAPlainLoop) {
  expect_equals_plain_loop(options_of("photos"));
}

TEST(ExportedRunTest, MasksTrainWithTheBitsOfAPlainLoop) {
  Options options = options_of("outlines");
  options.size = 12;
  expect_equals_plain_loop(options);
}

// Returns options that train output `output` of "masked" on 40 rows.
Options rows_of(int64_t output, const at::Tensor& target) {
  Options options = options_of("masked");
  options.output = output;
  options.data_dir = new_folder() + "rows.safetensors";
  StateDict rows;
  rows.insert("ids", at::randint(23, {40, 9}, at::kLong));
  rows.insert("valid", at::arange(9).lt(
                           at::arange(40).remainder(9).add(1).unsqueeze(1)));
  rows.insert("target", target);
  write_safetensors(options.data_dir, rows);
  return options;
}

TEST(ExportedRunTest, NamedTensorsTrainAModelOfSeveralInputs) {
  torch::manual_seed(3);
  at::Tensor words = at::randint(23, {40, 9}, at::kLong);
  words.slice(1, 6).fill_(-100);
  expect_equals_plain_loop(rows_of(0, words));
  expect_equals_plain_loop(rows_of(1, at::randn({40, 3})));
}

// LibTorch's mse_loss() would broadcast the targets, and the sum over 144
// values would be divided by 1.
TEST(ExportedRunTest, TargetsThatADynamicOutputDoesNotHaveAreRefused) {
  Options options = options_of("outlines");
  options.data_dir = new_folder() + "rows.safetensors";
  StateDict rows;
  rows.insert("x", at::rand({40, 3, 12, 12}));
  rows.insert("target", at::rand({40, 1, 1, 1}));
  write_safetensors(options.data_dir, rows);
  EXPECT_THAT(
      value_error_of([&] { run_here(options); }),
      AllOf(HasSubstr("rows of 'target' are ["),
            HasSubstr(", 1, 1, 1], but the model returns ["),
            HasSubstr(", 1, 12, 12] for them; give targets of these sizes")));
}

TEST(ExportedRunTest, TargetsOfAnyStridesTrain) {
  Options options = options_of("outlines");
  options.data_dir = new_folder() + "rows.pt";
  StateDict rows;
  rows.insert("x", at::rand({40, 3, 12, 12}));
  rows.insert("target",
              at::randint(12, {12, 1, 40}, at::kLong).permute({2, 1, 0}));
  write_torch_file(options.data_dir, rows);
  EXPECT_EQ(run_here(options).code, kDone);
  Options plain = options;
  plain.run_dir += " plain";
  plain.data_dir = new_folder() + "rows.pt";
  rows["target"] = rows["target"].contiguous();
  write_torch_file(plain.data_dir, rows);
  EXPECT_EQ(run_here(plain).code, kDone);
  expect_equal(state_in(options.run_dir).model, state_in(plain.run_dir).model);
}

TEST(ExportedRunTest, OperatorsOfALibraryTrain) {
  Options options = options_of("photos");
  const std::string own = new_folder() + "own.pt2";
  gpipe::testing::edit_program(options.model, own,
                               "torch.ops.aten.relu.default",
                               "torch.ops.gpipe_test.square.default");
  options.model = own;
  options.operators = "no_such_library.so";
  EXPECT_THROW(make_task(options), std::invalid_argument);
  options.operators = std::getenv("OPERATORS");
  expect_equals_plain_loop(options);
}

TEST(ExportedRunTest, ARunOnNamedTensorsIsTestedAndResumes) {
  torch::manual_seed(3);
  Options options = rows_of(1, at::randint(3, {40}, at::kLong));
  options.steps = 4;
  options.eval_every = 2;
  options.balance = "time";
  Options whole = options;
  whole.run_dir += " whole";
  EXPECT_EQ(run_here(whole).code, kDone);
  options.steps = 2;
  EXPECT_EQ(run_here(options).code, kDone);
  options.steps = 4;
  EXPECT_NE(run_here(options).line_with("resumes at step 2"), "");
  expect_equal(state_in(options.run_dir).model, state_in(whole.run_dir).model);
  const auto task = make_task(options);
  const Score score = plain_score(options.run_dir, *task, task->model());
  EXPECT_EQ(score.items, 4);
  EXPECT_NEAR(std::stod(logged(options.run_dir, 4, "test_accuracy")),
              100 * score.value / 4, 1e-6);
  EXPECT_NEAR(std::stod(logged(options.run_dir, 4, "test_loss")),
              score.loss / 4, 1e-6);
}

TEST(ExportedRunTest, LayersAreBalancedByTime) {
  for (const char* name : {"letters", "photos", "outlines"}) {
    Options options = options_of(name);
    options.balance = "time";
    options.steps = 1;
    const Ran ran = run_here(options);
    EXPECT_EQ(ran.code, kDone) << name;
    EXPECT_NE(ran.line_with("all 1 steps are done"), "") << name;
  }
}

TEST(ExportedRunTest, LinesOfSeveralLengthsTrain) {
  Options options = options_of("letters");
  options.bucket = 2;
  EXPECT_EQ(run_here(options).code, kDone);
}

TEST(ExportedRunTest, AProgramOfOneLayerIsAnnouncedWithTheReason) {
  Options options = options_of("letters");
  options.partitions = 1;
  options.devices = "cpu";
  options.steps = 1;
  EXPECT_EQ(run_here(options).line_with("single layer"), "");
  options.run_dir += " 0";
  options.max_crossing = 0;
  EXPECT_EQ(
      run_here(options).line_with("single layer"),
      "--model=models/exported/testdata/letters.pt2 is a single layer: 1 or "
      "more tensors cross at each place to cut, but max_crossing is 0");
}

TEST(ExportedRunTest, SavedWeightsHaveTheLayersNameBeforePythons) {
  Options options = options_of("letters");
  options.steps = 1;
  run_here(options);
  const auto names = state_in(options.run_dir).model.keys();
  EXPECT_EQ(names.front(), "embed.embed.weight");
  EXPECT_EQ(names.back(), "head.head.bias");
}

}  // namespace
}  // namespace gpipe::train_program
