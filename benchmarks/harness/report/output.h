// Printing of results, in the format that --format selects.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/program.h"
#include "benchmarks/harness/experiment/table.h"
#include "benchmarks/harness/report/environment.h"

namespace gpipe::benchmarks {

// Throws std::invalid_argument if --format is unknown. Call it before the work,
// so that a typing error does not lose the result of a run.
void check_format();

// Prints `table` to stdout in the format of --format. The environment becomes
// the last note or, in JSON, the context.
//
// Throws std::runtime_error if stdout cannot be written.
void print_table(const Table& table, const std::string& program,
                 const Environment& environment);

// Prints the environment alone in the format of --format; as text, one fact per
// line.
//
// Throws std::runtime_error if stdout cannot be written.
void print_environment(const std::string& program,
                       const Environment& environment);

// run_program() for a `measure` that returns tables. Checks --format before the
// work, and prints the tables with the environment after it.
int run_table_program(int argc, char** argv, const Program& program,
                      const std::function<std::vector<Table>()>& measure);

}  // namespace gpipe::benchmarks
