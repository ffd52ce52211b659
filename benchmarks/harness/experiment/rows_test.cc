#include "benchmarks/harness/experiment/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
  try {
    choose(settings, {});
    FAIL() << "a balance of four";
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("no chosen experiment has 4"));
  }
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
