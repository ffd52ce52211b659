// The notes under a table: what its readers must know.
#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/run_options.h"

namespace gpipe::benchmarks {

// Returns the notes as sentences: the sizes, how the numbers were obtained and
// what they leave out, the devices that partitions share, and the notes of the
// workload. If the table shows published figures, the notes of the benchmark
// follow.
std::vector<std::string> notes_for(const Benchmark& benchmark,
                                   const RunOptions& options);

}  // namespace gpipe::benchmarks
