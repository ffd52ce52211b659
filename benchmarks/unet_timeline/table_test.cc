#include "benchmarks/unet_timeline/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "benchmarks/harness/experiment/workloads.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;

Benchmark make_benchmark() {
  Benchmark benchmark;
  benchmark.title = "Toy";
  benchmark.base = "all on";
  benchmark.published = {{"their speed", Figure::kSpeed},
                         {"their GiB", Figure::kTotalBytes}};
  return benchmark;
}

// Returns an outcome with 10 samples in each of `seconds`.
Outcome measured(const std::string& name, const std::vector<double>& seconds) {
  Outcome row;
  row.experiment.name = name;
  row.experiment.partitions = 2;
  row.experiment.batch_size = 10;
  row.experiment.chunks = 6;  // torch::chunk makes 5 of 2 rows
  row.experiment.balance = {1, 2};
  row.experiment.size = {3, 4};
  row.mode = Mode::kMeasure;
  row.devices = "cuda:0, cuda:1";
  row.samples = 10;
  for (const double each : seconds) row.durations.push_back({each, 0});
  return row;
}

Outcome simulated(const std::string& name, double seconds) {
  Outcome row = measured(name, {seconds});
  row.mode = Mode::kSimulate;
  row.devices.clear();
  row.timeline.emplace();
  row.timeline->bubble_fraction = 0.25;
  row.timeline->peak_bytes = {2 * kGiB, 0.5 * kGiB};
  return row;
}

std::vector<std::string> texts(const Row& row) {
  std::vector<std::string> texts;
  for (const Cell& cell : row.cells) texts.push_back(cell.text());
  return texts;
}

TEST(TimelineTable, MeasuredRowsHaveMedianRangeAndRatio) {
  Outcome slow = measured("no skips", {1, 2, 4});
  slow.experiment.published = {30.5, 1.5 * kGiB};
  const Table table =
      timeline_table(make_benchmark(), {measured("all on", {1, 1, 2}), slow});
  EXPECT_EQ(table.title,
            "Toy: (3,4), measured on cuda:0, cuda:1, batch 10 in 5 "
            "micro-batches, checkpoint except_last, balance 1,2");
  EXPECT_THAT(table.columns,
              ElementsAre("mode", "samples/s", "range", "of all on", "peak GiB",
                          "idle %", "their speed", "their GiB"));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_THAT(
      texts(table.rows[0]),
      ElementsAre("measured", "10.00", "5.0..10.0", "1.000", "", "", "", ""));
  EXPECT_THAT(texts(table.rows[1]),
              ElementsAre("measured", "5.00", "2.5..10.0", "0.500", "", "",
                          "30.500", "1.5"));
  EXPECT_EQ(table.rows[1].durations.size(), 3u);
}

TEST(TimelineTable, SimulatedRowsTellMemoryOfAllDevicesAndIdleTime) {
  const Table table =
      timeline_table(make_benchmark(), {simulated("all on", 0.5)});
  EXPECT_EQ(table.title,
            "Toy: (3,4), simulated, batch 10 in 5 micro-batches, checkpoint "
            "except_last, balance 1,2");
  EXPECT_THAT(
      texts(table.rows[0]),
      ElementsAre("simulated", "20.00", "", "1.000", "2.5", "25.0", "", ""));
}

TEST(TimelineTable, AMeasuredTimelineHasNoMemory) {
  Outcome row = measured("all on", {1});
  row.timeline.emplace();
  const Table table = timeline_table(make_benchmark(), {row});
  EXPECT_TRUE(table.rows[0].cells.at(4).is_nothing());
  EXPECT_EQ(table.rows[0].cells.at(5).text(), "0.0");
}

TEST(TimelineTable, WithoutTheBaseThereIsNoRatio) {
  const Table table =
      timeline_table(make_benchmark(), {measured("no skips", {1})});
  EXPECT_TRUE(table.rows[0].cells.at(3).is_nothing());
}

TEST(TimelineTable, RowsWithoutAResultTellWhy) {
  Outcome row = measured("no streams", {});
  row.error = "left out";
  const Table table =
      timeline_table(make_benchmark(), {measured("all on", {1}), row});
  EXPECT_EQ(table.rows[0].error, "");
  EXPECT_EQ(table.rows[1].error, "left out");
  EXPECT_TRUE(table.rows[1].cells.at(1).is_nothing());
}

}  // namespace
}  // namespace gpipe::benchmarks
