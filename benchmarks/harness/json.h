// Results in Google Benchmark's JSON, so that its compare.py reads them.
#pragma once

#include <string>

#include "benchmarks/harness/environment.h"
#include "benchmarks/harness/table.h"

namespace gpipe::benchmarks {

// Every duration of a row is an entry "<program>/<row>" (run_type
// "iteration"); rows with several have entries for mean, median and standard
// deviation too. A row without any, as those about memory may be, is an entry
// with a time of 0. Times are in milliseconds. Cells are further members, named
// as their columns (bytes: plain_columns()): numbers are counters to readers of
// the format.
std::string to_json(const Table& table, const std::string& program,
                    const Environment& environment);

}  // namespace gpipe::benchmarks
