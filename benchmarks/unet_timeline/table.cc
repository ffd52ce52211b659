#include "benchmarks/unet_timeline/table.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/mode.h"
#include "benchmarks/harness/experiment/workloads.h"
#include "benchmarks/harness/report/figures.h"
#include "benchmarks/harness/report/outcome_table.h"
#include "gpipe/schedule/microbatches.h"

namespace gpipe::benchmarks {
namespace {

std::string title_of(const Benchmark& benchmark, const Outcome& row) {
  const Experiment& experiment = row.experiment;
  const int64_t microbatches =
      num_microbatches(experiment.batch_size, experiment.chunks);
  const std::string where = row.devices.empty() ? "" : " on " + row.devices;
  return benchmark.title + ": (" + absl::StrJoin(experiment.size, ",") + "), " +
         to_string(row.mode) + where + ", batch " +
         std::to_string(experiment.batch_size) + " in " +
         std::to_string(microbatches) + " micro-batches, checkpoint " +
         to_string(experiment.checkpoint) + ", balance " +
         balance_text(experiment.balance);
}

Cell range_of(const std::vector<double>& speeds) {
  if (speeds.size() < 2) return {};
  const auto [least, most] = std::minmax_element(speeds.begin(), speeds.end());
  return absl::StrFormat("%.1f..%.1f", *least, *most);
}

// Returns the peak in GiB, or nothing for a measured timeline, which has no
// bytes.
Cell peak_of(const std::optional<Timeline>& timeline) {
  if (!timeline || timeline->peak_bytes.empty()) return {};
  const auto& peaks = timeline->peak_bytes;
  return {std::accumulate(peaks.begin(), peaks.end(), 0.0) / kGiB, 1};
}

Cell idle_of(const std::optional<Timeline>& timeline) {
  if (!timeline) return {};
  return {100 * timeline->bubble_fraction, 1};
}

Cell published_cell(Figure figure, std::optional<double> value) {
  if (value && is_bytes(figure)) return {*value / kGiB, 1};
  return {value, 3};
}

}  // namespace

Table timeline_table(const Benchmark& benchmark,
                     const std::vector<Outcome>& rows) {
  Table table;
  table.title = title_of(benchmark, rows.at(0));
  table.name_column = "mechanisms";
  table.columns = {"mode",     "samples/s", "range", "of " + benchmark.base,
                   "peak GiB", "idle %"};
  for (const auto& column : benchmark.published) {
    table.columns.push_back(column.name);
  }
  for (const Outcome& outcome : rows) {
    const auto ratio =
        figure_of(Figure::kSpeedUp, outcome, base_of(benchmark, outcome, rows));
    Row& row = table.rows.emplace_back();
    row.name = outcome.experiment.name;
    row.durations = outcome.durations;
    row.error = outcome.error;
    row.cells = {to_string(outcome.mode),   {median_speed(outcome), 2},
                 range_of(speeds(outcome)), {ratio, 3},
                 peak_of(outcome.timeline), idle_of(outcome.timeline)};
    const auto& published = outcome.experiment.published;
    for (std::size_t k = 0; k < benchmark.published.size(); ++k) {
      row.cells.push_back(
          published_cell(benchmark.published[k].figure,
                         k < published.size() ? published[k] : std::nullopt));
    }
  }
  return table;
}

}  // namespace gpipe::benchmarks
