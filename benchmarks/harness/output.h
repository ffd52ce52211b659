// --format: how a result is printed.
#pragma once

#include <string>

#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/table.h"

namespace gpipe::benchmarks {

// std::invalid_argument for a --format that there is not. Call it before the
// work, so that a slip of the pen does not cost a run.
void check_format();

// Prints `table` to stdout as --format says, with the environment: as the last
// note, or as the context of JSON. std::runtime_error if it cannot be written;
// so does print_environment().
void print_table(const Table& table, const std::string& program,
                 const Environment& environment);

// The environment alone, a fact per line, or as --format says otherwise.
void print_environment(const std::string& program,
                       const Environment& environment);

}  // namespace gpipe::benchmarks
