// --format: how a result is printed.
#pragma once

#include <string>

#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/table.h"

namespace gpipe::benchmarks {

// std::invalid_argument for a --format that there is not. Call it before the
// work, so that a slip of the pen does not cost a run.
void check_format();

// Prints `table` to stdout as --format says.
void print_table(const Table& table, const std::string& program,
                 const Environment& environment);

}  // namespace gpipe::benchmarks
