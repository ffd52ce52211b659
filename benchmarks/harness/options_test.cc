#include "benchmarks/harness/options.h"

#include <ATen/Context.h>
#include <gflags/gflags.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "benchmarks/harness/devices.h"
#include "benchmarks/harness/experiments_of_tests.h"
#include "gpipe/base/devices.h"
#include "gpipe/testing/thrown.h"

DECLARE_string(devices);
DECLARE_string(balance);
DECLARE_string(checkpoint);
DECLARE_int64(chunks);
DECLARE_int64(batch_size);
DECLARE_bool(deterministic);

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

std::string error_of_settings() {
  return testing::thrown<std::invalid_argument>(parse_settings);
}

class SettingsTest : public ::testing::Test {
 private:
  gflags::FlagSaver saver_;  // restores the flags after each test
};

TEST_F(SettingsTest, LeavesAnExperimentAloneWithoutFlags) {
  const Experiment experiment =
      apply(parse_settings(), experiment_of({1, 3}, 32, 4));
  EXPECT_EQ(experiment.batch_size, 32);
  EXPECT_EQ(experiment.chunks, 4);
  EXPECT_THAT(experiment.balance, ElementsAre(1, 3));
  EXPECT_EQ(experiment.checkpoint, Checkpoint::kExceptLast);
}

TEST_F(SettingsTest, FlagsReplaceWhatAnExperimentSays) {
  FLAGS_batch_size = 16;
  FLAGS_chunks = 2;
  FLAGS_balance = "2,2";
  FLAGS_checkpoint = "never";
  const Experiment experiment =
      apply(parse_settings(), experiment_of({1, 3}, 32, 4));
  EXPECT_EQ(experiment.batch_size, 16);
  EXPECT_EQ(experiment.chunks, 2);
  EXPECT_THAT(experiment.balance, ElementsAre(2, 2));
  EXPECT_EQ(experiment.checkpoint, Checkpoint::kNever);
}

TEST_F(SettingsTest, BalanceGoesToAsManyPartitions) {
  FLAGS_balance = "2,1,1";
  EXPECT_THAT(apply(parse_settings(), experiment_of({1, 3}, 32, 4)).balance,
              ElementsAre(1, 3));
  FLAGS_balance = "auto";
  EXPECT_THAT(apply(parse_settings(), experiment_of({1, 3}, 32, 4)).balance,
              IsEmpty());
}

TEST_F(SettingsTest, PlainModelHasNoChunks) {
  FLAGS_chunks = 8;
  Experiment plain;
  EXPECT_EQ(apply(parse_settings(), plain).chunks, 1);
}

TEST_F(SettingsTest, DeterministicKernelsAreUsedOnlyIfAskedFor) {
  use_kernels(parse_settings());
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  FLAGS_deterministic = true;
  use_kernels(parse_settings());
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
  at::globalContext().setDeterministicAlgorithms(false, false);
}

TEST_F(SettingsTest, ABalanceHasToAddUpToTheLayers) {
  check_layers(parse_settings(), 7);  // no balance, no error
  FLAGS_balance = "3,4";
  check_layers(parse_settings(), 7);
  for (const int64_t layers : {6, 8}) {
    EXPECT_EQ(testing::thrown<std::invalid_argument>(
                  [&] { check_layers(parse_settings(), layers); }),
              "--balance=3,4: the model has " + std::to_string(layers) +
                  " layers, and the numbers must add up to that");
  }
  // The sum of these numbers is 2 in 64 bits.
  FLAGS_balance = "9223372036854775807,9223372036854775807,4";
  EXPECT_THROW(check_layers(parse_settings(), 2), std::invalid_argument);
}

TEST_F(SettingsTest, NamesAFlagWithoutSense) {
  FLAGS_chunks = -1;
  EXPECT_THAT(error_of_settings(), HasSubstr("--chunks=-1"));
  FLAGS_chunks = 0;
  FLAGS_balance = "1,x";
  EXPECT_THAT(error_of_settings(), HasSubstr("--balance=1,x"));
  FLAGS_balance = "";
  FLAGS_checkpoint = "sometimes";
  EXPECT_THAT(error_of_settings(), HasSubstr("--checkpoint=sometimes"));
  FLAGS_checkpoint = "";
  FLAGS_devices = "abacus";
  EXPECT_THAT(error_of_settings(), HasSubstr("'abacus'"));
  FLAGS_devices = "999";
  EXPECT_THAT(error_of_settings(), HasSubstr("no accelerator 999"));
}

TEST(DevicesTest, OneCpuServesAllPartitions) {
  const auto cpu = parse_devices("cpu");
  EXPECT_THAT(devices_for(3, cpu),
              ElementsAre(c10::kCPU, c10::kCPU, c10::kCPU));
}

TEST(DevicesTest, TellsHowManyAreMissing) {
  const std::vector<c10::Device> two{c10::kCPU, c10::kCPU};
  EXPECT_EQ(devices_for(1, two).size(), 1U);
  EXPECT_THAT(
      [&] { devices_for(4, two); },
      ThrowsMessage<MissingDevices>(HasSubstr("needs 4 devices, there are 2")));
}

const std::vector<Experiment>& experiments() {
  static const auto* const all = new std::vector<Experiment>{
      {"baseline", 0, 10, 1, {}, Checkpoint::kNever, {1.0}, {}, ""},
      {"pipeline-2", 2, 20, 4, {1, 2}, Checkpoint::kAlways, {2.0}, {}, ""},
      {"pipeline-3", 3, 30, 4, {}, Checkpoint::kAlways, {3.0}, {}, ""}};
  return *all;
}

std::vector<std::string> names_of(const std::vector<Experiment>& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.push_back(row.name);
  return names;
}

std::vector<int64_t> batches_of(const std::vector<Experiment>& rows) {
  std::vector<int64_t> batches;
  for (const auto& row : rows) batches.push_back(row.batch_size);
  return batches;
}

std::vector<Experiment> choose(const Settings& settings,
                               const RowOptions& options) {
  return choose_rows(experiments(), "baseline", settings, options);
}

TEST(RowsTest, RowsAreThePapersWithoutFlags) {
  const auto rows = choose({}, {});
  EXPECT_THAT(names_of(rows),
              ElementsAre("baseline", "pipeline-2", "pipeline-3"));
  EXPECT_THAT(batches_of(rows), ElementsAre(10, 20, 30));
}

TEST(RowsTest, TheSameBatchIsTheBases) {
  RowOptions options;
  options.same_batch = true;
  EXPECT_THAT(batches_of(choose({}, options)), ElementsAre(10, 10, 10));
  options.names = "pipeline-3";
  EXPECT_THAT(batches_of(choose({}, options)), ElementsAre(10));
}

TEST(RowsTest, ANamedBatchIsThatOfEveryRow) {
  Settings settings;
  settings.batch_size = 7;
  EXPECT_THAT(batches_of(choose(settings, {})), ElementsAre(7, 7, 7));
  RowOptions options;
  options.same_batch = true;
  EXPECT_THAT(batches_of(choose(settings, options)), ElementsAre(7, 7, 7));
}

TEST(RowsTest, TheSameBatchWantsABase) {
  RowOptions options;
  options.same_batch = true;
  EXPECT_THROW(choose_rows(experiments(), "naive", {}, options),
               std::invalid_argument);
}

TEST(RowsTest, ABalanceForNoRowIsRefused) {
  Settings settings;
  settings.balance = {1, 1, 1, 1};
  EXPECT_THAT([&] { choose(settings, {}); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("no chosen experiment has 4")));
}

TEST(RowsTest, OneControlServesRowsOfEqualWork) {
  RowOptions options;
  options.same_batch = true;
  options.control = true;
  const auto rows = choose({}, options);
  EXPECT_THAT(names_of(rows), ElementsAre("baseline", "checkpoint-only",
                                          "pipeline-2", "pipeline-3"));
  EXPECT_EQ(rows[1].partitions, 1);
  EXPECT_EQ(rows[1].batch_size, 10);
  EXPECT_EQ(rows[1].chunks, 4);
  EXPECT_EQ(rows[1].checkpoint, Checkpoint::kAlways);
  EXPECT_THAT(rows[1].balance, IsEmpty());
  EXPECT_THAT(rows[1].published, IsEmpty());
}

TEST(RowsTest, RowsOfOtherWorkHaveControlsOfTheirOwn) {
  RowOptions options;
  options.control = true;
  const auto rows = choose({}, options);
  EXPECT_THAT(
      names_of(rows),
      ElementsAre("baseline", "checkpoint-only (pipeline-2)",
                  "checkpoint-only (pipeline-3)", "pipeline-2", "pipeline-3"));
  EXPECT_THAT(batches_of(rows), ElementsAre(10, 20, 30, 20, 30));
}

TEST(RowsTest, ARowWithOnePartitionAndEqualWorkIsAControl) {
  auto rows = experiments();
  Experiment one = rows[1];
  one.name = "pipeline-1";
  one.partitions = 1;
  one.balance = {3};
  rows.push_back(one);
  EXPECT_THAT(names_of(with_controls(rows)),
              ElementsAre("baseline", "checkpoint-only", "pipeline-2",
                          "pipeline-3", "pipeline-1"));
  rows.back().checkpoint = Checkpoint::kNever;  // different work
  EXPECT_EQ(with_controls(rows).size(), 6U);
}

TEST(RowsTest, NoPipelineNeedsNoControl) {
  EXPECT_THAT(names_of(with_controls({experiments()[0]})),
              ElementsAre("baseline"));
}

}  // namespace
}  // namespace gpipe::benchmarks
