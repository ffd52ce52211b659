// The main() function of every table.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// Runs a whole program and returns its exit code. Parses the flags and gets the
// outcome of each selected experiment in the selected mode. Prints the outcomes
// as a table (outcome_table.h) with notes and the environment, and writes the
// pictures that were asked for. With --dry_run or --env it only prints.
//
// If an experiment throws, its row shows the error, the other experiments run,
// and the exit code is 2 (kFailed). If there are not enough devices for an
// experiment, its row says so, and this is not a failure. The exit code is also
// 2 if no experiment ran.
int run_benchmark(int argc, char** argv, const Benchmark& benchmark);

}  // namespace gpipe::benchmarks
