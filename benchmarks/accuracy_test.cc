#include "benchmarks/accuracy.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "models/testing/files.h"
#include "training/learning_rate.h"
#include "training/program/task.h"
#include "training/testing/small_runs.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

using train_program::Options;

// Returns the options of a row of the table, with 100 steps per epoch.
Options options_of(const std::string& name, bool small = false,
                   const Options& flags = {},
                   const std::set<std::string>& given = {}) {
  const AccuracyTable table = accuracy_table(small);
  for (const AccuracyRow& row : table.rows) {
    if (row.experiment.name != name) continue;
    return row_options(
        table, row, flags,
        [&](const std::string& flag) { return given.count(flag) > 0; },
        /*steps=*/100);
  }
  throw std::logic_error(name);
}

TEST(AccuracyPreset, HasTheSettingsOfTheRow) {
  const Options options = options_of("pipeline-1k");
  EXPECT_EQ(options.model, "resnet101");
  EXPECT_EQ(options.partitions, 8);
  EXPECT_EQ(options.batch, 1024);
  EXPECT_EQ(options.chunks, 64);
  EXPECT_EQ(options.balance, "26,22,33,44,44,66,66,69");
  EXPECT_EQ(options.checkpoint, "except_last");
  EXPECT_EQ(options.schedule, "fill-drain");
  EXPECT_EQ(options.epochs, 90);
  EXPECT_EQ(options.size, 224);
  EXPECT_EQ(options.optimizer, "sgd");
  EXPECT_TRUE(options.nesterov && options.decay_norms && options.train_score);
  EXPECT_EQ(options.momentum, 0.9);
  EXPECT_EQ(options.weight_decay, 1e-4);
  EXPECT_DOUBLE_EQ(options.lr, 0.4);
  const LearningRateSchedule schedule(options.lr_schedule);
  const auto rate = [&](double epoch) {
    return options.lr * schedule.factor(static_cast<int64_t>(epoch * 100));
  };
  EXPECT_DOUBLE_EQ(rate(0), 0.1);
  EXPECT_DOUBLE_EQ(rate(2), 0.25);
  EXPECT_DOUBLE_EQ(rate(4), 0.4);
  EXPECT_DOUBLE_EQ(rate(29.9), 0.4);
  EXPECT_DOUBLE_EQ(rate(30), 0.04);
  EXPECT_DOUBLE_EQ(rate(89), 0.0004);
}

TEST(AccuracyPreset, SmallRowsWarmUpFromATenth) {
  const Options options = options_of("pipeline-1k", /*small=*/true);
  EXPECT_EQ(options.batch, 128);
  EXPECT_EQ(options.balance, "time");
  EXPECT_EQ(options.epochs, 6);
  EXPECT_EQ(options.size, 32);
  EXPECT_DOUBLE_EQ(options.lr, 0.004);
  EXPECT_EQ(options.lr_schedule.substr(0, 12), "warmup:100:0");
  EXPECT_THAT(options.lr_schedule, HasSubstr(",milestones:200:400:600:0.1"));
}

TEST(AccuracyPreset, ThePlainModelIsOnePartitionWithoutRecomputes) {
  const Options options = options_of("naive-128");
  EXPECT_EQ(options.partitions, 1);
  EXPECT_EQ(options.chunks, 1);
  EXPECT_EQ(options.checkpoint, "never");
}

TEST(AccuracyPreset, FlagsReplaceTheSettingsOfTheRow) {
  Options flags;
  flags.batch = 96;
  flags.lr = 0.03;
  flags.lr_schedule = "constant";
  flags.epochs = 9;
  const Options options = options_of("pipeline-256", /*small=*/false, flags,
                                     {"batch", "lr", "lr_schedule"});
  EXPECT_EQ(options.batch, 96);
  EXPECT_DOUBLE_EQ(options.lr, 0.03);
  EXPECT_EQ(options.lr_schedule, "constant");
  EXPECT_EQ(options.epochs, 90);
  flags.batch = 10;
  EXPECT_THAT(
      [&] { options_of("pipeline-256", /*small=*/false, flags, {"batch"}); },
      ThrowsMessage<std::invalid_argument>(
          HasSubstr("--batch=10 is not a multiple of --chunks=4")));
  flags.chunks = 0;
  EXPECT_THROW(options_of("pipeline-256", /*small=*/false, flags, {"chunks"}),
               c10::ValueError);
}

using train_program::Evaluation;

std::vector<std::string> texts(const Row& row) {
  std::vector<std::string> texts;
  for (const Cell& cell : row.cells) texts.push_back(cell.text());
  return texts;
}

AccuracyOutcome outcome_of(const std::string& name) {
  AccuracyOutcome outcome;
  for (const AccuracyRow& row : accuracy_table(/*small=*/false).rows) {
    if (row.experiment.name == name) outcome.row = row;
  }
  outcome.error = outcome.row.left_out;
  return outcome;
}

Evaluation epoch(double seconds) {
  Evaluation epoch;
  epoch.train = {/*items=*/12, /*loss=*/24, /*value=*/9};
  epoch.test = {/*items=*/8, /*loss=*/4, /*value=*/7};
  epoch.seconds = seconds;
  return epoch;
}

TEST(AccuracyTable, EpochsThatAnotherProcessHasBegunHaveNoSpeed) {
  AccuracyOutcome outcome = outcome_of("pipeline-256");
  outcome.epochs = {epoch(1), epoch(2), epoch(4)};
  outcome.epochs[2].untimed_steps = 1;
  EXPECT_EQ(texts(accuracy_rows_table({outcome}).rows[0]).at(10), "6.00");
  outcome.epochs.erase(outcome.epochs.begin(), outcome.epochs.begin() + 2);
  EXPECT_EQ(texts(accuracy_rows_table({outcome}).rows[0]).at(10), "");
}

TEST(AccuracyTable, RowsTellTheLastEpochBesideThePublishedFigures) {
  AccuracyOutcome outcome = outcome_of("pipeline-256");
  outcome.options.batch = 256;
  outcome.options.epochs = 3;
  outcome.options.lr = 0.1;
  // 12, 6 and 3 samples per second.
  outcome.epochs = {epoch(1), epoch(2), epoch(4)};
  outcome.balance = {170, 200};
  outcome.checksum = 0xabc;
  const Table table =
      accuracy_rows_table({outcome, outcome_of("amoebanet-b-birdsnap")});
  EXPECT_THAT(table.columns,
              ElementsAre("batch", "chunks", "balance", "checkpoint", "epochs",
                          "learning rate", "training loss", "training error %",
                          "test loss", "test top-1 error %", "samples/s",
                          "checksum", "published top-1 error %",
                          "its deviation", "published samples/s",
                          "published speed-up", "published on devices"));
  EXPECT_EQ(table.rows.at(0).name, "pipeline-256");
  EXPECT_THAT(table.rows[0].durations, SizeIs(2));
  EXPECT_THAT(
      texts(table.rows[0]),
      ElementsAre("256", "4", "170,200", "except_last", "3", "0.10000",
                  "2.000000", "25.00", "0.500000", "12.50", "4.50", "00000abc",
                  "21.99", "0.13", "117.432", "0.651", "2"));
  EXPECT_THAT(texts(table.rows.at(1)),
              ElementsAre("", "", "", "", "", "", "", "", "", "", "", "",
                          "16.40", "", "", ""));
  EXPECT_THAT(table.rows[1].error, HasSubstr("AmoebaNet-B"));
}

// Returns a model with six layers for the eight classes of generated shapes.
torch::nn::Sequential tiny_model() {
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).stride(2)),
      torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
      torch::nn::AdaptiveAvgPool2d(1), torch::nn::Flatten(),
      torch::nn::Linear(8, 8));
}

// Trains two epochs of two steps on the CPU.
AccuracyOutcome train(const std::string& balance, int64_t partitions,
                      double lr = 0.001, const std::string& run_dir = "") {
  AccuracyOutcome outcome;
  auto& options = outcome.options;
  options = train_program::small_options("amoebanetd");  // see tiny_model()
  options.balance = balance;
  options.partitions = partitions;
  options.devices = "cpu,cpu,cpu";
  options.size = 16;
  options.batch = 4;
  options.chunks = 2;
  options.limit = 9;
  options.epochs = 2;
  options.steps = 0;
  options.eval_every = 0;
  options.optimizer = "sgd";
  options.lr = lr;
  options.run_dir = run_dir;
  options.train_score = true;
  const auto shapes = train_program::make_task(options);
  train_program::TaskWith task(*shapes, nullptr);
  task.change_model = [](const auto&) { return tiny_model(); };
  train_row(task, outcome);
  return outcome;
}

TEST(TrainRowTest, EndsInTheSameBitsHoweverTheModelIsCut) {
  const AccuracyOutcome one = train("6", 1);
  const AccuracyOutcome three = train("1,3,2", 3);
  EXPECT_EQ(one.checksum, three.checksum);
  ASSERT_THAT(one.epochs, SizeIs(2));
  ASSERT_THAT(three.epochs, SizeIs(2));
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(one.epochs[i].train.loss, three.epochs[i].train.loss);
    EXPECT_EQ(one.epochs[i].test.loss, three.epochs[i].test.loss);
  }
  EXPECT_EQ(one.epochs[0].train.items, 8);  // of 9 images
  EXPECT_EQ(one.epochs[0].test.items, 256);
  EXPECT_THAT(three.balance, ElementsAre(1, 3, 2));
}

TEST(TrainRowTest, ALossThatIsNotFiniteEndsIt) {
  EXPECT_THAT(
      [] { train("6", 1, /*lr=*/1e38); },
      ThrowsMessage<std::runtime_error>(HasSubstr("try a smaller --lr")));
}

TEST(TrainRowTest, ARunThatIsDoneHasNoResults) {
  const std::string run_dir = testing::new_folder() + "run";
  EXPECT_THAT(train("6", 1, 0.001, run_dir).epochs, SizeIs(2));
  EXPECT_THAT([&] { train("6", 1, 0.001, run_dir); },
              ThrowsMessage<std::runtime_error>(
                  HasSubstr("all steps of the run in --run_dir were done")));
}

}  // namespace
}  // namespace gpipe::benchmarks
