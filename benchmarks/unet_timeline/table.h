// The gain from mechanisms, as a table.
#pragma once

#include <vector>

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/outcome.h"
#include "benchmarks/harness/experiment/table.h"

namespace gpipe::benchmarks {

// Returns a table with a row per outcome. The columns are: the mode; the median
// of the samples per second; their range, if there are several; the ratio to
// the benchmark's base; the peak memory as a sum over all devices; the idle
// part of the devices' time; and the published columns. Memory and idle time
// come from the timeline. The cell of an unknown figure is empty. The title
// shows the mode, the mini-batch and the balance. The table has no notes; the
// caller adds them.
//
// `rows`: outcomes with the same mode, mini-batch and balance; at least one.
Table timeline_table(const Benchmark& benchmark,
                     const std::vector<Outcome>& rows);

}  // namespace gpipe::benchmarks
