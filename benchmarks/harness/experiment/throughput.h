// Measurement of samples per second over epochs.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/harness/experiment/table.h"

namespace gpipe::benchmarks {

// A stopwatch that waits until the devices are idle before it reads the time.
class Stopwatch {
 public:
  // Blocks until all devices are idle, then starts.
  explicit Stopwatch(std::vector<c10::Device> devices);

  // Blocks until all devices are idle, then returns the time since the start.
  Duration elapsed() const;

 private:
  std::vector<c10::Device> devices_;
  double wall_;
  double cpu_;
};

// Runs `work` and returns its duration. Does not wait for accelerators.
Duration time_of(const std::function<void()>& work);

// Returns the wall seconds of each duration.
std::vector<double> wall_seconds(const std::vector<Duration>& durations);

// The epochs of a measurement.
struct Epochs {
  int64_t samples = 0;     // per epoch
  int64_t batch_size = 0;  // the last mini-batch of an epoch may be smaller
  int64_t count = 0;       // number of epochs
  int64_t skipped = 0;  // number of warm-up epochs that do not count; < count
  bool silent = false;  // show no progress, since another process does
};

// Runs `step(rows)` for every mini-batch of every epoch, shows the progress,
// and returns the durations of the epochs that were not skipped. All devices
// are idle at the start and end of each duration.
//
// `label`: the name of the experiment, for the progress.
std::vector<Duration> time_epochs(const std::string& label,
                                  const Epochs& epochs,
                                  const std::vector<c10::Device>& devices,
                                  const std::function<void(int64_t)>& step);

}  // namespace gpipe::benchmarks
