// The profile of an experiment's model, which need not fit into memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "balancing/profile.h"
#include "benchmarks/harness/benchmark.h"
#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

struct LayerProfile {
  balancing::Profile profile;
  std::string note;  // a sentence for the reader: what was timed, and where
};

// Of the experiment's model, timed on `device`, or this machine's first: with
// as many rows as take about `seconds`, but at most `rows` and at least one,
// since a layer's time for a row falls with their number (weights are fetched
// once for all of them) and micro-batches of the papers have dozens. On a CPU
// with one thread, since several wait for each other whenever something else is
// at work there. Layers of a kind (layer_kinds.h) take the median of their
// times. What is timed is the model or, where the first number of
// Experiment::size is a depth, the most shallow one that has all of its kinds
// of layers: a Transformer of 48 blocks has those of one with a single block.
// Bytes are those of the model itself, counted without memory.
//
// Errors: those of balancing::profile_times() and profile_memory(), and what
// making the model throws. Threads: as for profile_times().
LayerProfile profile_layers(const Benchmark& benchmark,
                            const Workload& workload,
                            const Experiment& experiment, int64_t rows,
                            double seconds,
                            std::optional<c10::Device> device = {});

}  // namespace gpipe::benchmarks
