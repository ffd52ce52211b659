#include "benchmarks/harness/pictures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <regex>
#include <stdexcept>

#include "gpipe/testing/thrown.h"

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Optional;

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string error_of(const std::string& path) {
  return testing::thrown<std::invalid_argument>([&] {
    OutputFile("plot", path, {".svg", ".json"});
  });
}

TEST(OutputFileTest, KeepsWhatThereIsUntilItWrites) {
  const std::string path = ::testing::TempDir() + "/kept.svg";
  std::ofstream(path) << "what is longer";
  const OutputFile file("plot", path, {".svg"});
  EXPECT_EQ(content_of(path), "what is longer");
  file.write("new");
  EXPECT_EQ(content_of(path), "new");
}

TEST(OutputFileTest, LeavesNoEmptyFileBehind) {
  const std::string path = ::testing::TempDir() + "/absent.svg";
  std::remove(path.c_str());
  const OutputFile file("plot", path, {".svg"});
  EXPECT_FALSE(std::ifstream(path).is_open());
  file.write("new");
  EXPECT_EQ(content_of(path), "new");
}

TEST(OutputFileTest, KnowsItsEnding) {
  const OutputFile file("plot", ::testing::TempDir() + "/a.json", {".json"});
  EXPECT_TRUE(file.is_wanted());
  EXPECT_TRUE(file.ends_in(".json"));
  EXPECT_FALSE(file.ends_in(".svg"));
  EXPECT_FALSE(OutputFile("plot", "", {".svg"}).is_wanted());
}

TEST(OutputFileTest, RefusesBeforeTheWork) {
  EXPECT_THAT(error_of("/no/such/folder/a.svg"),
              HasSubstr("--plot=/no/such/folder/a.svg: cannot be written"));
  EXPECT_THAT(error_of("a.png"), HasSubstr("ends in .svg or .json"));
}

BarChart make_chart() {
  BarChart chart;
  chart.title = "a < b & \"c\"";
  chart.axis = "speed-up";
  chart.series = {"ours", "theirs"};
  chart.groups = {{"one", {1.0, 4.0}}, {"two", {2.0, std::nullopt}}};
  chart.text = [](double value) { return std::to_string(value).substr(0, 4); };
  return chart;
}

std::vector<std::string> matches(const std::string& text,
                                 const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), expression), end;
       it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

std::vector<std::string> bar_heights(const std::string& svg) {
  return matches(svg, "<rect class=\"bar\"[^>]* height=\"([0-9.]+)\"");
}

// Expects that every tag is closed, in the right order.
void expect_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  const std::regex tag("<(/?)([a-z]+)[^>]*?(/?)>");
  for (std::sregex_iterator it(xml.begin(), xml.end(), tag), end; it != end;
       ++it) {
    if ((*it)[3] == "/") continue;
    if ((*it)[1] == "/") {
      ASSERT_FALSE(open.empty()) << (*it)[0];
      EXPECT_EQ(open.back(), (*it)[2]);
      open.pop_back();
    } else {
      open.push_back((*it)[2]);
    }
  }
  EXPECT_THAT(open, IsEmpty());
}

TEST(BarChartTest, ABarPerValueOfItsHeight) {
  static_assert(kTallestBar == 240);
  EXPECT_THAT(bar_heights(to_svg(make_chart())),
              ElementsAre("60.00", "240.00", "120.00"));
}

TEST(BarChartTest, BarsStandOnOneGround) {
  const std::string svg = to_svg(make_chart());
  const auto tops =
      matches(svg, "<rect class=\"bar\" x=\"[0-9.]+\" y=\"([0-9.]+)");
  const auto heights = bar_heights(svg);
  ASSERT_EQ(tops.size(), 3U);
  for (size_t i = 0; i < tops.size(); ++i) {
    EXPECT_EQ(std::stod(tops[i]) + std::stod(heights[i]), 304.0);
  }
}

TEST(BarChartTest, IsWellFormedAndNeedsNoOtherFile) {
  const std::string svg = to_svg(make_chart());
  expect_well_formed(svg);
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
}

TEST(BarChartTest, HasTitlesLegendValuesAndTicks) {
  const std::string svg = to_svg(make_chart());
  for (const char* text : {">speed-up<", ">ours<", ">theirs<", ">one<", ">two<",
                           ">one, theirs: 4.00<"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  EXPECT_THAT(matches(svg, "class=\"right\">([0-9.]+)<"),
              ElementsAre("0.00", "1.00", "2.00", "3.00", "4.00"));
}

TEST(BarChartTest, StepsOfBytesArePowersOfTwo) {
  BarChart chart = make_chart();
  chart.base = 2;
  chart.groups = {{"one", {3000.0}}};
  EXPECT_THAT(matches(to_svg(chart), "class=\"right\">([0-9.]+)<"),
              ElementsAre("0.00", "1024", "2048"));
}

TEST(BarChartTest, NothingKnownIsAnEmptyChart) {
  BarChart chart = make_chart();
  chart.groups = {{"one", {std::nullopt, std::nullopt}}};
  const std::string svg = to_svg(chart);
  expect_well_formed(svg);
  EXPECT_THAT(bar_heights(svg), IsEmpty());
}

TEST(BarChartTest, RefusesWhatIsNoHeight) {
  BarChart chart = make_chart();
  chart.groups[0].values[0] = -1.0;
  EXPECT_THROW(to_svg(chart), std::invalid_argument);
  chart.groups[0].values[0] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(to_svg(chart), std::invalid_argument);
  chart.groups[0].values = {1.0, 2.0, 3.0};
  EXPECT_THROW(to_svg(chart), std::invalid_argument);
}

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
