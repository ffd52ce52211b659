#include "benchmarks/harness/pictures.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "benchmarks/harness/outcome_table.h"
#include "gpipe/base/svg.h"
#include "gpipe/base/text.h"
#include "gpipe/simulation.h"

DEFINE_string(plot, "",
              "File (.svg) for a bar chart of the speed-ups or of the memory, "
              "beside the published figures.");
DEFINE_string(timeline, "",
              "File for the timelines of simulated steps: a picture (.svg), or "
              "a trace (.json) for ui.perfetto.dev.");

namespace gpipe::benchmarks {

OutputFile::OutputFile(const std::string& flag, std::string path,
                       const std::vector<std::string>& endings)
    : path_(std::move(path)) {
  if (path_.empty()) return;
  const std::string told = "--" + flag + "=" + path_ + ": ";
  const bool known = std::ranges::any_of(
      endings, [this](const auto& ending) { return ends_in(ending); });
  if (!known) {
    internal::refuse(told, "expected a name that ends in ",
                     absl::StrJoin(endings, " or "));
  }
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path_, ignored);
  if (!std::ofstream(path_, std::ios::app)) {
    internal::refuse(
        told, "cannot be written; does the folder exist, and is it yours?");
  }
  // The run may end before it writes the file: leave no empty file behind.
  if (!existed) std::filesystem::remove(path_, ignored);
}

void OutputFile::write(const std::string& text) const {
  std::ofstream file(path_, std::ios::binary);
  file << text;
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path_);
}

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

namespace {

Figure main_figure(const Benchmark& benchmark, Mode mode) {
  if (tells_speed(benchmark, mode)) return Figure::kSpeedUp;
  const auto publishes = [&](Figure figure) {
    return std::ranges::any_of(
        benchmark.published,
        [figure](const auto& column) { return column.figure == figure; });
  };
  return !publishes(Figure::kTotalBytes) && publishes(Figure::kActivationBytes)
             ? Figure::kActivationBytes
             : Figure::kTotalBytes;
}

std::string two_decimals(double value) {
  return absl::StrFormat("%.2f", value);
}

}  // namespace

BarChart chart_of(const Benchmark& benchmark, Mode mode,
                  const std::vector<Outcome>& outcomes) {
  const Figure figure = main_figure(benchmark, mode);
  BarChart chart;
  chart.title = benchmark.title;
  chart.axis = to_string(figure);
  chart.base = is_bytes(figure) ? 2 : 10;
  chart.text = is_bytes(figure) ? bytes_text : two_decimals;
  chart.series = {"gpipe, " + to_string(mode)};
  std::vector<size_t> columns;
  for (size_t i = 0; i < benchmark.published.size(); ++i) {
    if (benchmark.published[i].figure != figure) continue;
    chart.series.push_back(benchmark.published[i].name);
    columns.push_back(i);
  }
  for (const Outcome& outcome : outcomes) {
    auto& group = chart.groups.emplace_back();
    group.name = outcome.experiment.name;
    group.values = {
        figure_of(figure, outcome, base_of(benchmark, outcome, outcomes))};
    const auto& published = outcome.experiment.published;
    for (const size_t i : columns) {
      group.values.push_back(i < published.size() ? published[i]
                                                  : std::nullopt);
    }
  }
  return chart;
}

Pictures::Pictures()
    : plot_("plot", FLAGS_plot, {".svg"}),
      timeline_("timeline", FLAGS_timeline, {".svg", ".json"}) {}

void Pictures::write(const Benchmark& benchmark, Mode mode,
                     const std::vector<Outcome>& outcomes) const {
  if (plot_.is_wanted()) {
    plot_.write(to_svg(chart_of(benchmark, mode, outcomes)));
  }
  if (!timeline_.is_wanted()) return;
  std::vector<NamedTimeline> timelines;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.timeline) continue;
    timelines.push_back(
        {outcome.experiment.name + ", " + to_string(mode), *outcome.timeline});
  }
  timeline_.write(timeline_.ends_in(".svg") ? to_svg(timelines)
                                            : to_chrome_trace(timelines));
}

}  // namespace gpipe::benchmarks
