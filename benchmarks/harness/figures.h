// The figures of a table, worked out of what runs found.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/outcome.h"

namespace gpipe::benchmarks {

// Samples per second of each duration, and their median; none without one.
std::vector<double> speeds(const Outcome& outcome);
std::optional<double> median_speed(const Outcome& outcome);

// Of `outcomes`, the one whose speed-up is 1 for `outcome`; nullptr if it was
// not run.
const Outcome* base_of(const Benchmark& benchmark, const Outcome& outcome,
                       const std::vector<Outcome>& outcomes);

// None if it is not known. `base`: may be nullptr. Parameters are told from
// their gradients: all of them are trained, as float32.
std::optional<double> figure_of(Figure figure, const Outcome& outcome,
                                const Outcome* base);

// Whether it tells of time rather than of memory; whether it is bytes.
bool is_speed(Figure figure);
bool is_bytes(Figure figure);

// "speed-up", "samples/s", "parameters", "model memory", "activations",
// "total memory".
std::string name_of(Figure figure);

// Sums over devices.
int64_t total(const std::vector<DeviceMemory>& memory,
              int64_t (*part)(const DeviceMemory&));

}  // namespace gpipe::benchmarks
