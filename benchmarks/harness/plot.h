// A chart of the main figure of a table.
#pragma once

#include <vector>

#include "benchmarks/harness/bar_chart.h"
#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/outcome.h"

namespace gpipe::benchmarks {

// Returns a chart with a group of bars per outcome: gpipe's figure, labelled
// with its mode, and each published column of the same figure. The figure is
// the speed-up. For memory it is the total, or the activations if only these
// are published.
BarChart chart_of(const Benchmark& benchmark, Mode mode,
                  const std::vector<Outcome>& outcomes);

}  // namespace gpipe::benchmarks
