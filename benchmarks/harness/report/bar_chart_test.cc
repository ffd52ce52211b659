#include "benchmarks/harness/report/bar_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <regex>
#include <stdexcept>

namespace gpipe::benchmarks {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

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

}  // namespace
}  // namespace gpipe::benchmarks
