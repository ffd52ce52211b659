// Results in the JSON format of Google Benchmark, for its compare.py.
#pragma once

#include <string>

#include "benchmarks/harness/experiment/table.h"
#include "benchmarks/harness/report/environment.h"

namespace gpipe::benchmarks {

// Returns the table as JSON. Each duration of a row becomes an entry
// "<program>/<row>" with the run_type "iteration". A row with several durations
// also gets entries for mean, median and standard deviation. A row without
// durations, such as one about memory, becomes an entry with a time of 0. Times
// are in milliseconds. Each cell becomes a member of the entry, named as its
// column in plain_columns(); readers of the format treat numbers as counters.
// Bytes that are not UTF-8 are replaced.
std::string to_json(const Table& table, const std::string& program,
                    const Environment& environment);

}  // namespace gpipe::benchmarks
