#include "benchmarks/harness/report/bar_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "gpipe/base/svg.h"
#include "gpipe/base/text.h"

namespace gpipe::benchmarks {
namespace {

// Sizes in pixels.
constexpr double kLeft = 80, kRight = 24;  // margins beside the bars
constexpr double kTop = 64;  // above the tallest bar: title and value
constexpr double kBar = 34, kBetween = 26;
constexpr double kFoot = 28, kLegendLine = 22;

// Colours that colour-blind readers can tell apart (Okabe and Ito).
constexpr std::array<const char*, 7> kColours = {
    "#0072b2", "#e69f00", "#009e73", "#cc79a7",
    "#56b4e9", "#d55e00", "#f0e442"};

constexpr char kStyle[] =
    ".value { font-size: 9px; text-anchor: middle }\n"
    ".group { text-anchor: middle }\n"
    ".tick { stroke: #ddd; stroke-width: 1 }\n"
    ".axis { stroke: #444; stroke-width: 1 }\n";

std::string fill(const char* colour) {
  return std::string("fill=\"") + colour + "\"";
}

// Returns the distance of grid lines, for two to six steps: a round number, or
// a power of two if `base` is 2.
double grid_step(double tallest, int base) {
  if (base == 2) return std::exp2(std::floor(std::log2(tallest / 2)));
  return tick_step(tallest, 6);
}

double tallest_of(const BarChart& chart) {
  double tallest = 0;
  for (const auto& group : chart.groups) {
    if (group.values.size() > chart.series.size()) {
      internal::refuse("bar chart: '", group.name, "' has ",
                       group.values.size(), " values for ", chart.series.size(),
                       " series");
    }
    for (const auto& value : group.values) {
      if (value && !(*value >= 0 && std::isfinite(*value))) {
        internal::refuse("bar chart: '", group.name, "' has ",
                         std::to_string(*value), ", but bars are of 0 or more");
      }
      tallest = std::max(tallest, value.value_or(0));
    }
  }
  return tallest;
}

const char* colour_of(size_t series) {
  return kColours[series % kColours.size()];
}

}  // namespace

std::string to_svg(const BarChart& chart) {
  const double tallest = tallest_of(chart);
  const double ground = kTop + kTallestBar;
  const double group_width =
      kBar * static_cast<double>(chart.series.size()) + kBetween;
  const double plot =
      std::max(360.0, group_width * static_cast<double>(chart.groups.size()));
  const double width = kLeft + plot + kRight;
  const double height = ground + kFoot +
                        kLegendLine * static_cast<double>(chart.series.size()) +
                        8;

  std::string body = svg_text(12, 20, "title", chart.title);
  body += svg_text(12, 40, "axis-name", chart.axis);
  if (tallest > 0) {
    const double step = grid_step(tallest, chart.base);
    for (int k = 0; k * step <= tallest * (1 + 1e-9); ++k) {
      const double y = ground - k * step / tallest * kTallestBar;
      body += svg_line("tick", kLeft, y, kLeft + plot, y);
      body += svg_text(kLeft - 8, y + 4, "right", chart.text(k * step));
    }
  }
  double x = kLeft;
  for (const auto& group : chart.groups) {
    for (size_t i = 0; i < group.values.size(); ++i) {
      if (!group.values[i]) continue;
      const double value = *group.values[i];
      const double tall = tallest > 0 ? value / tallest * kTallestBar : 0;
      const double left = x + kBetween / 2 + kBar * static_cast<double>(i);
      const std::string text = chart.text(value);
      body += svg_box("bar", left, ground - tall, kBar - 2, tall,
                      fill(colour_of(i)),
                      group.name + ", " + chart.series[i] + ": " + text);
      body += svg_text(left + kBar / 2 - 1, ground - tall - 4, "value", text);
    }
    body += svg_text(x + group_width / 2, ground + 16, "group", group.name);
    x += group_width;
  }
  body += svg_line("axis", kLeft, ground, kLeft + plot, ground);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const double y = ground + kFoot + kLegendLine * static_cast<double>(i);
    body +=
        svg_box("key", kLeft, y, 14, 14, fill(colour_of(i)), chart.series[i]);
    body += svg_text(kLeft + 20, y + 11, "legend", chart.series[i]);
  }
  return svg_document(width, height, kStyle, body);
}

}  // namespace gpipe::benchmarks
