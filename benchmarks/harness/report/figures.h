// The figures of a table, computed from the outcomes of its experiments.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/outcome.h"

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

// Returns the sum of `part` over all devices.
int64_t total(const std::vector<DeviceMemory>& memory,
              int64_t (*part)(const DeviceMemory&));

}  // namespace gpipe::benchmarks
