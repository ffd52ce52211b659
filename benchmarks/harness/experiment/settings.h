// The flags that are common to all programs that train a pipeline.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"

namespace gpipe::benchmarks {

// The values of the flags. A member without a value leaves the choice to the
// experiment.
struct Settings {
  std::vector<c10::Device> devices;  // --devices, or those of the machine
  std::optional<int64_t> batch_size;
  std::optional<int64_t> chunks;
  bool balance_by_time = false;  // --balance=auto
  std::vector<int64_t> balance;  // --balance=3,4
  std::optional<Checkpoint> checkpoint;
  std::optional<int64_t> epochs;
  uint64_t seed = 0;
  bool deterministic = false;
};

// Returns the values of the flags. Throws std::invalid_argument if a flag has
// an invalid value.
Settings parse_settings();

// Throws std::invalid_argument if the entries of --balance do not add up to
// `layers`, the number of layers of the model.
void check_layers(const Settings& settings, int64_t layers);

// If `deterministic` is set, makes LibTorch use deterministic kernels for the
// rest of the process. An operator without one throws.
void use_kernels(const Settings& settings);

// Returns `experiment` with its values replaced by those of `settings`. A
// balance applies only if it has as many entries as the experiment has
// partitions. If the experiment has 0 partitions, only its batch size changes.
Experiment apply(const Settings& settings, Experiment experiment);

}  // namespace gpipe::benchmarks
