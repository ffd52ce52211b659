// The main() function of every table, and the notes under it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/options.h"
#include "benchmarks/harness/table.h"

namespace gpipe::benchmarks {

// Returns the notes as sentences: the sizes, how the numbers were obtained and
// what they leave out, the devices that partitions share, and the notes of the
// workload. If the table shows published figures, the notes of the benchmark
// follow.
std::vector<std::string> notes_for(const Benchmark& benchmark,
                                   const RunOptions& options);

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

// How a table is made whose rows run together, in turns.
struct RowsInTurn {
  // Throws std::invalid_argument for options that the table does not support.
  // May change the options.
  std::function<void(RunOptions& options)> check;
  // Sets the devices of rows before a measurement, or why they are left out.
  std::function<void(const RunOptions& options, std::vector<Outcome>* rows)>
      plan;
  // Sets the results of the rows that are not left out, and adds notes.
  // `timelines`: whether the rows need a timeline.
  std::function<void(const RunOptions& options, bool timelines,
                     std::vector<Outcome>* rows,
                     std::vector<std::string>* notes)>
      run;
  std::function<Table(const std::vector<Outcome>& rows)> table;
};

// Does the same with rows that run together. --timeline is not only for
// simulations then.
int run_benchmark(int argc, char** argv, const Benchmark& benchmark,
                  const RowsInTurn& rows_in_turn);

}  // namespace gpipe::benchmarks
