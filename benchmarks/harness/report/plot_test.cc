#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/harness/report/pictures.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::Optional;

Outcome plotted_outcome(const std::string& name, double seconds) {
  Outcome outcome;
  outcome.experiment.name = name;
  outcome.experiment.published = {100.0, 1.5, 64.0};
  outcome.samples = 10;
  outcome.durations = {{seconds, 0}};
  DeviceMemory memory;
  memory.parameters = 8;
  memory.gradients = 8;
  memory.peak = 48;
  outcome.memory = {memory};
  return outcome;
}

Benchmark plotted_benchmark() {
  Benchmark benchmark;
  benchmark.title = "Toy";
  benchmark.published = {{"theirs samples/s", Figure::kSpeed},
                         {"theirs speed-up", Figure::kSpeedUp},
                         {"theirs activations", Figure::kActivationBytes}};
  return benchmark;
}

TEST(PlotTest, SpeedUpsStandBesideThePublishedOnes) {
  auto outcomes = {plotted_outcome("baseline", 4),
                   plotted_outcome("pipeline-2", 2)};
  const BarChart chart =
      chart_of(plotted_benchmark(), Mode::kMeasure, outcomes);
  EXPECT_EQ(chart.axis, "speed-up");
  EXPECT_THAT(chart.series, ElementsAre("gpipe, measured", "theirs speed-up"));
  ASSERT_EQ(chart.groups.size(), 2U);
  EXPECT_THAT(chart.groups[0].values,
              ElementsAre(Optional(1.0), Optional(1.5)));
  EXPECT_EQ(chart.groups[1].name, "pipeline-2");
  EXPECT_THAT(chart.groups[1].values,
              ElementsAre(Optional(2.0), Optional(1.5)));
  EXPECT_EQ(chart.text(1.25), "1.25");
}

TEST(PlotTest, DryRunsAreOfTheBytesThatArePublished) {
  auto benchmark = plotted_benchmark();
  const BarChart activations =
      chart_of(benchmark, Mode::kDryRun, {plotted_outcome("a", 1)});
  EXPECT_EQ(activations.axis, "activations");
  EXPECT_THAT(activations.series,
              ElementsAre("gpipe, dry-run", "theirs activations"));
  EXPECT_THAT(activations.groups[0].values,
              ElementsAre(Optional(32.0), Optional(64.0)));
  EXPECT_EQ(activations.text(1024), "1 KiB");

  benchmark.published[2].figure = Figure::kTotalBytes;
  const BarChart total =
      chart_of(benchmark, Mode::kDryRun, {plotted_outcome("a", 1)});
  EXPECT_THAT(total.groups[0].values,
              ElementsAre(Optional(48.0), Optional(64.0)));
}

TEST(PlotTest, ARowThatFailedHasNoFigureOfOurs) {
  Outcome failed = plotted_outcome("a", 1);
  failed.durations.clear();
  const BarChart chart =
      chart_of(plotted_benchmark(), Mode::kMeasure, {failed});
  EXPECT_THAT(chart.groups[0].values, ElementsAre(std::nullopt, Optional(1.5)));
}

}  // namespace
}  // namespace gpipe::benchmarks
