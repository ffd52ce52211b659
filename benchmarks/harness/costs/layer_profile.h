// The profile of an experiment's model, even if the model is larger than the
// memory.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>

#include "balancing/profile.h"
#include "benchmarks/harness/experiment/benchmark.h"
#include "benchmarks/harness/experiment/experiment.h"

namespace gpipe::benchmarks {

// The profile of a model's layers.
struct LayerProfile {
  balancing::Profile profile;
  std::string note;  // a sentence for readers: what was timed, and where
};

// Profiles the layers of the experiment's model.
//
// Times: Layers of one kind (layer_kinds.h) get the median time of that kind.
// If
// Experiment::size is not empty, its first number is a depth. The function then
// times the shallowest model that has all kinds of layers: one block of a
// Transformer is enough for 48. On a CPU it uses one thread, since several
// threads wait for each other whenever another program is running.
//
// Rows: It times as many rows as take about `seconds`, but at least 1 and at
// most `rows`. More rows are more realistic: the time per row falls with their
// number, since weights are fetched once for all rows, and the papers'
// micro-batches have dozens of rows.
//
// Bytes: Those of the whole model, counted on the meta device.
//
// `device`: the device to time on; if absent, the first of this machine.
//
// Throws what balancing::profile_times(), balancing::profile_memory() and
// Benchmark::model throw. Threads: The rules of profile_times() apply.
LayerProfile profile_layers(const Benchmark& benchmark,
                            const Workload& workload,
                            const Experiment& experiment, int64_t rows,
                            double seconds,
                            std::optional<c10::Device> device = {});

}  // namespace gpipe::benchmarks
