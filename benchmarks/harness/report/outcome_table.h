// Outcomes as a table, with the published figures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/mode.h"
#include "benchmarks/harness/experiment/outcome.h"
#include "benchmarks/harness/experiment/table.h"

namespace gpipe::benchmarks {

// Returns a table with a row per outcome. All outcomes were obtained in `mode`.
// The columns are, in this order:
//
// - the settings of the experiment;
// - in a speed table that was not dry-run: the median of the samples per
//   second, with the minimum and maximum if there are several durations; the
//   speed-up relative to the base experiment; the bubble, if simulated; and the
//   peak memory, if measured;
// - in other tables, as sums over all devices: the parameters, the model memory
//   (with gradients and the optimizer's state), the activations and the peak;
//   then the peak of the largest device, and in dry runs the peak of copies
//   from other devices;
// - the memory that the caching allocator reserved, if there is one;
// - the published figures of the same kind, speed or memory.
//
// The cell of an unknown figure is empty. The table has no notes; the caller
// adds them.
Table outcome_table(const Benchmark& benchmark, Mode mode,
                    const std::vector<Outcome>& outcomes);

// Returns a table with only the settings of experiments that have not been run.
Table plan_table(const Benchmark& benchmark, Mode mode,
                 const std::vector<Outcome>& outcomes);

// Returns true if outcome_table() shows speeds, false if it shows memory by
// kind.
bool tells_speed(const Benchmark& benchmark, Mode mode);

// Returns the balance as text: "3,4,5". Shortens the text of more than 16
// partitions: "13 x 127, 12".
std::string balance_text(const std::vector<int64_t>& balance);

}  // namespace gpipe::benchmarks
