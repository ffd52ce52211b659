// Samples per second over epochs.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/harness/table.h"

namespace gpipe::benchmarks {

// Start and now, with all devices idle at both.
class Stopwatch {
 public:
  explicit Stopwatch(std::vector<c10::Device> devices);
  Duration elapsed() const;

 private:
  std::vector<c10::Device> devices_;
  double wall_;
  double cpu_;
};

struct Epochs {
  int64_t samples = 0;     // per epoch
  int64_t batch_size = 0;  // the last of an epoch may be smaller
  int64_t count = 0;
  int64_t skipped = 0;  // from the front: they warm up; < count
  bool silent = false;  // no progress is told: another process does it
};

// Runs `step(rows)` for every mini-batch of every epoch, tells the progress,
// and returns the times of the epochs that were not skipped.
std::vector<Duration> time_epochs(const std::string& label,
                                  const Epochs& epochs,
                                  const std::vector<c10::Device>& devices,
                                  const std::function<void(int64_t)>& step);

}  // namespace gpipe::benchmarks
