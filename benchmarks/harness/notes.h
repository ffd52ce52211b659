// What the reader of a table has to know.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/run_options.h"

namespace gpipe::benchmarks {

// Sentences: the sizes, how the numbers were found and what they leave out,
// which devices partitions share, the workload's own and, if the table has
// published figures, the benchmark's on them.
std::vector<std::string> notes_for(const Benchmark& benchmark,
                                   const RunOptions& options);

}  // namespace gpipe::benchmarks
