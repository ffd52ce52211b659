// The main() of every table.
#pragma once

#include "benchmarks/harness/benchmark.h"

namespace gpipe::benchmarks {

// The whole of main(): reads the flags, finds an outcome for each chosen
// experiment in the chosen mode, prints them as a table (outcome_table.h) with
// notes and the environment, and draws the pictures that were asked for.
//
// An experiment that throws is a row that says so (exit code 2 at the end), and
// one for which there are not enough devices a row that says that; the others
// go on. Exit code 2 also if none was run. --dry_run and --env only print.
int run_benchmark(int argc, char** argv, const Benchmark& benchmark);

}  // namespace gpipe::benchmarks
