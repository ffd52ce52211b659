#include "benchmarks/harness/report/pictures.h"

#include <absl/strings/str_format.h>
#include <gflags/gflags.h>

#include <algorithm>
#include <optional>

#include "benchmarks/harness/report/figures.h"
#include "benchmarks/harness/report/outcome_table.h"
#include "gpipe/base/text.h"
#include "gpipe/simulation.h"

DEFINE_string(plot, "",
              "File (.svg) for a bar chart of the speed-ups or of the memory, "
              "beside the published figures.");
DEFINE_string(timeline, "",
              "File for the timelines of simulated steps: a picture (.svg), or "
              "a trace (.json) for ui.perfetto.dev.");

namespace gpipe::benchmarks {
namespace {

Figure main_figure(const Benchmark& benchmark, Mode mode) {
  if (tells_speed(benchmark, mode)) return Figure::kSpeedUp;
  const auto publishes = [&](Figure figure) {
    return std::any_of(
        benchmark.published.begin(), benchmark.published.end(),
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
