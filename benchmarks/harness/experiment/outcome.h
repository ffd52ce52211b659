// The outcome of an experiment, in any mode.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/experiment.h"
#include "benchmarks/harness/experiment/mode.h"
#include "benchmarks/harness/experiment/table.h"
#include "gpipe/simulation.h"

namespace gpipe::benchmarks {

// The memory of one device during training, in bytes.
struct DeviceMemory {
  // Memory that is kept from step to step. `gradients` is the size of the
  // trainable parameters.
  int64_t parameters = 0, gradients = 0, optimizer_state = 0;
  int64_t buffers = 0;  // such as the statistics of BatchNorm
  // The peak of all memory together, as requested by tensors.
  int64_t peak = 0;
  // The peak of the tensors that were copied from other devices. Only dry runs
  // know it.
  int64_t boundary = 0;
  // The peak of the memory that is not lasting: activations, temporary tensors
  // and boundary tensors together. Only dry runs know it.
  std::optional<int64_t> transient;
  // The peak of the memory that the caching allocator reserved; none if the
  // device has no caching allocator.
  std::optional<int64_t> reserved;

  // Returns the papers' "model memory", which does not include buffers.
  int64_t lasting() const { return parameters + gradients + optimizer_state; }
  // Returns the papers' "peak activation memory": the peak minus the model
  // memory and the buffers. It is less than `transient` if the peak comes
  // before the last gradients exist.
  int64_t activations() const { return peak - lasting() - buffers; }
};

// The result of an experiment, or the reason why there is none.
struct Outcome {
  Experiment experiment;       // with the balance that was used
  Mode mode = Mode::kMeasure;  // the way in which the result was obtained
  std::string devices;         // "cuda:0 x 2", if measured
  std::string threads;         // "2 x 1" on CPUs; "" on other devices
  int64_t samples = 0;         // the samples in each of the durations
  std::vector<Duration> durations;
  // The memory per device; empty if not measured. Partitions on one device
  // share an entry; all partitions on the CPU do.
  std::vector<DeviceMemory> memory;
  std::optional<Timeline> timeline;  // of a step, if simulated
  std::string error;                 // the reason why there is no result
  bool left_out = false;             // true if the error is not a failure
};

}  // namespace gpipe::benchmarks
