#include "benchmarks/harness/pictures.h"

#include <gflags/gflags.h>

#include "benchmarks/harness/bar_chart.h"
#include "benchmarks/harness/plot.h"
#include "gpipe/simulation.h"

DEFINE_string(plot, "",
              "File (.svg) for a bar chart of the speed-ups or of the memory, "
              "beside the published figures.");
DEFINE_string(timeline, "",
              "File for the timelines of simulated steps: a picture (.svg), or "
              "a trace (.json) for ui.perfetto.dev.");

namespace gpipe::benchmarks {

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
