#include "benchmarks/resnet101_accuracy/preset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <string>

#include "training/learning_rate.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::HasSubstr;
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
}

}  // namespace
}  // namespace gpipe::benchmarks
