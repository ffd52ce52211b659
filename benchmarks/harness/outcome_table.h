// Outcomes as a table, beside the published figures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/outcome.h"
#include "benchmarks/harness/table.h"

namespace gpipe::benchmarks {

// A row per outcome, all found in `mode`: what was run and how, then
//
// - of a speed table that was not dry-run: the median of samples per second
//   with the smallest and the largest, where there are several, and the ratio
//   to the base of the same run;
// - of the others: parameters, model memory (with gradients and the
//   optimizer's state), activations (the peak less that), and the peak, of all
//   devices together; the peak of the largest device, and what it was of
//   copies from other devices;
// - what a measured step took of memory at most, and an allocator reserved;
//
// and the published figures of the same kind. Nothing stands where a figure is
// not known. Notes are left to the caller.
Table outcome_table(const Benchmark& benchmark, Mode mode,
                    const std::vector<Outcome>& outcomes);

// Only what is to be run and how, of outcomes that are still to be found.
Table plan_table(const Benchmark& benchmark, Mode mode,
                 const std::vector<Outcome>& outcomes);

// Whether outcome_table() has speeds, or else memory by kind.
bool tells_speed(const Benchmark& benchmark, Mode mode);

// "3,4,5"; of more than 16 partitions shorter, "13 x 127, 12".
std::string balance_text(const std::vector<int64_t>& balance);

}  // namespace gpipe::benchmarks
