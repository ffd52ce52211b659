// What a run found out about an experiment, however it did.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment.h"
#include "benchmarks/harness/mode.h"
#include "benchmarks/harness/table.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// Of a device in training. Bytes.
struct DeviceMemory {
  // What stays from step to step. Gradients are as large as what is trained.
  int64_t parameters = 0, gradients = 0, optimizer_state = 0;
  int64_t buffers = 0;  // BatchNorm's statistics and the like
  // At most at any one time, all in all, as tensors ask for it.
  int64_t peak = 0;
  // What has been copied from other devices, at most; and all that is none of
  // those above, at most. Only dry runs know.
  int64_t boundary = 0;
  std::optional<int64_t> transient;
  // What a caching allocator held at most; none where there is none.
  std::optional<int64_t> reserved;

  // The papers' "model memory", which is without buffers.
  int64_t lasting() const { return parameters + gradients + optimizer_state; }
  // The papers' "peak activation memory": what the peak has beyond that. Less
  // than `transient` where the peak comes before the last gradients.
  int64_t activations() const { return peak - lasting() - buffers; }
};

struct Outcome {
  Experiment experiment;       // with the balance that was used
  Mode mode = Mode::kMeasure;  // how it was found out
  std::string devices;         // "cuda:0 x 2", if measured
  std::string threads;         // "2 x 1" on CPUs; "" elsewhere
  int64_t samples = 0;         // in each of the durations
  std::vector<Duration> durations;
  // By device; empty if not looked at. Partitions that share a device, as all
  // on the CPU do, share an entry.
  std::vector<DeviceMemory> memory;
  std::optional<Timeline> timeline;  // of a step, if there is one
  std::string error;                 // why there is no result
};

}  // namespace gpipe::benchmarks
