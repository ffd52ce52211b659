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
  bool deterministic = false;
};

// std::invalid_argument for a value without sense.
Settings parse_settings();

// std::invalid_argument, with the number of `layers` of a model, for a
// --balance that does not add up to it.
void check_layers(const Settings& settings, int64_t layers);

// With `deterministic`: has LibTorch use the kernels that give the same bits
// each time, and throw where there is none; for the rest of the process.
void use_kernels(const Settings& settings);

// `experiment` with what the command line says in place of its own. A balance
// goes to experiments with as many partitions as it has entries.
Experiment apply(const Settings& settings, Experiment experiment);

}  // namespace gpipe::benchmarks
