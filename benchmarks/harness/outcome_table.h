// Outcomes as figures and as a table, with the published figures.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/table.h"

namespace gpipe::benchmarks {

// Returns the samples per second of each duration.
std::vector<double> speeds(const Outcome& outcome);

// Returns the median of speeds(), or none if there are no durations.
std::optional<double> median_speed(const Outcome& outcome);

// Returns the element of `outcomes` that the speed-up of `outcome` is relative
// to, or nullptr if that experiment was not run.
const Outcome* base_of(const Benchmark& benchmark, const Outcome& outcome,
                       const std::vector<Outcome>& outcomes);

// Returns the value of `figure` for `outcome`, or none if it is not known. The
// number of parameters is computed from the bytes of the gradients: all
// parameters are assumed to be trainable and float32.
//
// `base`: the outcome that a speed-up is relative to; may be nullptr.
std::optional<double> figure_of(Figure figure, const Outcome& outcome,
                                const Outcome* base);

// Returns true if `figure` is a speed, and not an amount of memory.
bool is_speed(Figure figure);

// Returns true if the unit of `figure` is bytes.
bool is_bytes(Figure figure);

// Returns "speed-up", "samples/s", "parameters", "model memory", "activations"
// or "total memory".
std::string to_string(Figure figure);

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
