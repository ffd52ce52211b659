#include "benchmarks/resnet101_accuracy/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "benchmarks/resnet101_accuracy/rows.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<std::string> texts(const Row& row) {
  std::vector<std::string> texts;
  for (const Cell& cell : row.cells) texts.push_back(cell.text());
  return texts;
}

std::vector<std::string> names(const Table& table) {
  std::vector<std::string> names;
  for (const Row& row : table.rows) names.push_back(row.name);
  return names;
}

EpochResult epoch(double seconds) {
  EpochResult epoch;
  epoch.rate = 0.0001;
  epoch.train = {/*items=*/12, /*loss=*/24, /*value=*/9};
  epoch.test = {/*items=*/8, /*loss=*/4, /*value=*/7};
  epoch.duration.wall_seconds = seconds;
  return epoch;
}

// Returns an outcome with 12, 6 and 3 samples per second.
AccuracyOutcome outcome() {
  AccuracyOutcome outcome;
  for (const AccuracyRow& row : accuracy_table(/*small=*/false).rows) {
    if (row.experiment.name != "pipeline-256") continue;
    outcome.plan.experiment = row.experiment;
    outcome.plan.published_devices = row.devices;
    outcome.plan.rate.base = row.rate.value();
  }
  outcome.plan.options.size = 224;
  outcome.plan.rate.milestones = {30, 60, 80};
  outcome.plan.options.epochs = 3;
  outcome.result.epochs = {epoch(1), epoch(2), epoch(4)};
  outcome.result.balance = {170, 200};
  outcome.result.checksum = 0xabc;
  return outcome;
}

AccuracyOutcome left_out() {
  AccuracyOutcome outcome;
  outcome.plan.experiment.name = "amoebanet-b-birdsnap";
  outcome.plan.experiment.published = {16.4, {}, {}, {}};
  outcome.plan.rate.base = 0;
  outcome.plan.options.epochs = 0;
  outcome.error = outcome.plan.left_out = "another model";
  return outcome;
}

TEST(AccuracyTable, RowsTellTheLastEpochBesideThePublishedFigures) {
  const Table table = accuracy_rows_table({}, {outcome(), left_out()});
  EXPECT_THAT(table.columns,
              ElementsAre("batch", "chunks", "balance", "checkpoint", "epochs",
                          "learning rate", "training loss", "training error %",
                          "test loss", "test top-1 error %", "samples/s",
                          "checksum", "published top-1 error %",
                          "its deviation", "published samples/s",
                          "published speed-up", "published on devices"));
  EXPECT_THAT(names(table),
              ElementsAre("pipeline-256", "amoebanet-b-birdsnap"));
  EXPECT_THAT(texts(table.rows[0]),
              ElementsAre("256", "4", "170,200", "except_last", "3", "0.10000",
                          "2.000000", "25.00", "0.500000", "12.50", "4.50",
                          "0000000000000abc", "21.99", "0.13", "117.432",
                          "0.651", "2"));
  EXPECT_THAT(texts(table.rows[1]),
              ElementsAre("", "", "", "", "", "", "", "", "", "", "", "",
                          "16.40", "", "", "", ""));
  EXPECT_EQ(table.rows[1].error, "another model");
}

TEST(AccuracyTable, WithoutPublishedItHasOursOnly) {
  AccuracyOptions options;
  options.published = false;
  const Table table = accuracy_rows_table(options, {outcome()});
  EXPECT_EQ(table.columns.back(), "checksum");
  EXPECT_THAT(table.rows.at(0).cells, SizeIs(table.columns.size()));
}

TEST(AccuracyTable, EpochsAreRowsAndTorchgpipesOwnComeBehind) {
  const Table table = epochs_table(outcome(), /*published=*/true);
  EXPECT_THAT(
      names(table),
      ElementsAre("1", "2", "3", "torchgpipe dataparallel-256",
                  "torchgpipe dataparallel-1k", "torchgpipe pipeline-256",
                  "torchgpipe pipeline-1k", "torchgpipe pipeline-4k"));
  EXPECT_THAT(texts(table.rows[1]),
              ElementsAre("0.00010", "2.000000", "25.00", "0.500000", "12.50",
                          "6.00", "2.00"));
  EXPECT_THAT(texts(table.rows[7]),
              ElementsAre("1.60000", "", "", "", "22.13", "378.75"));
  EXPECT_THAT(names(epochs_table(outcome(), /*published=*/false)),
              ElementsAre("1", "2", "3"));
}

TEST(AccuracyTable, APlanHasNoResults) {
  AccuracyOptions options;
  options.plans = {outcome().plan, left_out().plan};
  const Table table = accuracy_plan_table(options);
  EXPECT_THAT(
      table.columns,
      ElementsAre("partitions", "batch", "chunks", "balance", "checkpoint",
                  "epochs", "learning rate", "warm-up epochs", "warm-up from",
                  "a tenth after", "image size"));
  EXPECT_THAT(texts(table.rows.at(0)),
              ElementsAre("2", "256", "4", "140,230", "except_last", "3",
                          "0.10000", "0.0", "0.10000", "30,60,80", "224"));
  EXPECT_EQ(table.rows.at(1).error, "another model");
  EXPECT_THAT(texts(table.rows.at(1)), ElementsAre("", "", "", "", "", "", ""));
  EXPECT_THAT(table.notes,
              ElementsAre("On generated shapes: there is no --data_dir."));
}

}  // namespace
}  // namespace gpipe::benchmarks
