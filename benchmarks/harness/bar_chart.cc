#include "benchmarks/harness/bar_chart.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "gpipe/text/format.h"
#include "gpipe/text/refuse.h"
#include "gpipe/text/xml.h"

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
    "<style>\n"
    "text { font: 11px sans-serif; fill: #000 }\n"
    ".title { font: bold 13px sans-serif }\n"
    ".value { font-size: 9px; text-anchor: middle }\n"
    ".group { text-anchor: middle }\n"
    ".right { text-anchor: end }\n"
    ".tick { stroke: #ddd; stroke-width: 1 }\n"
    ".axis { stroke: #444; stroke-width: 1 }\n"
    "</style>\n";

std::string number(double value) { return format("%.2f", value); }

std::string text_at(double x, double y, const char* style,
                    const std::string& text) {
  return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" class=\"" +
         style + "\">" + xml_escaped(text) + "</text>\n";
}

std::string line(const char* style, double x1, double y1, double x2,
                 double y2) {
  return std::string("<line class=\"") + style + "\" x1=\"" + number(x1) +
         "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" +
         number(y2) + "\"/>\n";
}

std::string box(const char* style, double x, double y, double width,
                double height, const std::string& colour,
                const std::string& tooltip) {
  return std::string("<rect class=\"") + style + "\" x=\"" + number(x) +
         "\" y=\"" + number(y) + "\" width=\"" + number(width) +
         "\" height=\"" + number(height) + "\" fill=\"" + colour +
         "\"><title>" + xml_escaped(tooltip) + "</title></rect>\n";
}

// Returns the distance of grid lines: 1, 2 or 5 times a power of ten, or a
// power of two if `base` is 2. The chart gets two to six steps.
double tick_step(double tallest, int base) {
  if (base == 2) return std::exp2(std::floor(std::log2(tallest / 2)));
  const double power = std::pow(10, std::floor(std::log10(tallest)));
  for (const double factor : {0.2, 0.5, 1.0}) {
    if (tallest / (factor * power) <= 6) return factor * power;
  }
  return 2 * power;
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

  std::string body = text_at(12, 20, "title", chart.title);
  body += text_at(12, 40, "axis-name", chart.axis);
  if (tallest > 0) {
    const double step = tick_step(tallest, chart.base);
    for (int k = 0; k * step <= tallest * (1 + 1e-9); ++k) {
      const double y = ground - k * step / tallest * kTallestBar;
      body += line("tick", kLeft, y, kLeft + plot, y);
      body += text_at(kLeft - 8, y + 4, "right", chart.text(k * step));
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
      body += box("bar", left, ground - tall, kBar - 2, tall, colour_of(i),
                  group.name + ", " + chart.series[i] + ": " + text);
      body += text_at(left + kBar / 2 - 1, ground - tall - 4, "value", text);
    }
    body += text_at(x + group_width / 2, ground + 16, "group", group.name);
    x += group_width;
  }
  body += line("axis", kLeft, ground, kLeft + plot, ground);
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const double y = ground + kFoot + kLegendLine * static_cast<double>(i);
    body += box("key", kLeft, y, 14, 14, colour_of(i), chart.series[i]);
    body += text_at(kLeft + 20, y + 11, "legend", chart.series[i]);
  }
  const std::string size =
      "width=\"" + number(width) + "\" height=\"" + number(height) + "\"";
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size +
         " viewBox=\"0 0 " + number(width) + " " + number(height) + "\">\n" +
         kStyle + "<rect " + size + " fill=\"#fff\"/>\n" + body + "</svg>\n";
}

}  // namespace gpipe::benchmarks
