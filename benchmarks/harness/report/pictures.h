// Pictures of a result: --plot and --timeline.
#pragma once

#include <vector>

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/mode.h"
#include "benchmarks/harness/experiment/outcome.h"
#include "benchmarks/harness/report/bar_chart.h"
#include "benchmarks/harness/report/output_file.h"

namespace gpipe::benchmarks {

// Returns a chart with a group of bars per outcome: gpipe's figure, labelled
// with its mode, and each published column of the same figure. The figure is
// the speed-up. For memory it is the total, or the activations if only these
// are published.
BarChart chart_of(const Benchmark& benchmark, Mode mode,
                  const std::vector<Outcome>& outcomes);

// The pictures that --plot and --timeline ask for.
class Pictures {
 public:
  // Reads the flags. Construct it before the work: it throws
  // std::invalid_argument if a path has a wrong ending or cannot be written.
  Pictures();

  bool wants_timelines() const { return timeline_.is_wanted(); }

  // Writes the pictures that were asked for: chart_of(), and the
  // timelines of the outcomes that have one, on a common time scale. Throws
  // std::runtime_error if a file cannot be written.
  void write(const Benchmark& benchmark, Mode mode,
             const std::vector<Outcome>& outcomes) const;

 private:
  OutputFile plot_;
  OutputFile timeline_;
};

}  // namespace gpipe::benchmarks
