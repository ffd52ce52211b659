// Flags of every program that trains through a pipeline.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"

namespace gpipe::benchmarks {

// What the command line says; nothing where it leaves the choice to an
// experiment.
struct Settings {
  std::vector<c10::Device> devices;  // --devices, or the machine's
  std::optional<int64_t> batch_size;
  std::optional<int64_t> chunks;
  bool balance_by_time = false;  // --balance=auto
  std::vector<int64_t> balance;  // --balance=3,4
  std::optional<Checkpoint> checkpoint;
  std::optional<int64_t> epochs;
  uint64_t seed = 0;
};

// std::invalid_argument for a value without sense.
Settings parse_settings();

// `experiment` with what the command line says in place of its own. A balance
// goes to experiments with as many partitions as it has entries.
Experiment apply(const Settings& settings, Experiment experiment);

}  // namespace gpipe::benchmarks
