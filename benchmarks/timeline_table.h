// What mechanisms are worth, as a table.
#pragma once

#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/table.h"

namespace gpipe::benchmarks {

// A row per outcome, of one mode, mini-batch and cut, which the title tells:
// the median of samples per second with the smallest and the largest, where
// there are several; its ratio to the benchmark's base; of timelines the peak
// of what all devices hold together, where that is known, and the idle part of
// their time; and the published columns. Nothing stands where a figure is not
// known. Notes are left to the caller. There must be a row.
Table timeline_table(const Benchmark& benchmark,
                     const std::vector<Outcome>& rows);

}  // namespace gpipe::benchmarks
