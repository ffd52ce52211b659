// A table's main figure as a chart.
#pragma once

#include <vector>

#include "benchmarks/harness/bar_chart.h"
#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/outcome.h"

namespace gpipe::benchmarks {

// A group per outcome: ours, named by its mode, beside each published column of
// the same figure. That is the speed-up; for memory the total or, where only
// its parts are published, the activations.
BarChart chart_of(const Benchmark& benchmark, Mode mode,
                  const std::vector<Outcome>& outcomes);

}  // namespace gpipe::benchmarks
