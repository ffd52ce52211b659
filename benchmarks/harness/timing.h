// Repeated measurements: statistics, rounds, epochs with a display of the
// progress.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/harness/table.h"
#include "gpipe/base/status_line.h"

namespace gpipe::benchmarks {

// Returns the mean, or 0 if there are no values.
double mean(const std::vector<double>& values);

// Returns the median, or 0 if there are no values.
double median(std::vector<double> values);

// Returns the standard deviation of the sample (divisor n - 1), or 0 if there
// are fewer than two values.
double deviation(const std::vector<double>& values);

// Runs each of `steps` once per round, one after the other, so that other work
// on the machine affects all of them equally. Returns their results by step and
// round. The `warm_up` rounds come before those that `count`.
template <typename Result>
std::vector<std::vector<Result>> interleaved_rounds(
    int64_t count, int64_t warm_up,
    const std::vector<std::function<Result()>>& steps) {
  std::vector<std::vector<Result>> results(steps.size());
  for (int64_t round = -warm_up; round < count; ++round) {
    for (std::size_t k = 0; k < steps.size(); ++k) {
      Result result = steps[k]();
      if (round >= 0) results[k].push_back(std::move(result));
    }
  }
  return results;
}

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

// Returns "pipeline-2 | epoch 2/3 (50%) | 21.3 samples/s | 00:01:05 | 00:01:05
// left". The clock is that of clock_text().
//
// `seconds`: the time since the start.
// `epoch`: the current epoch, counted from 1.
// `done_of_epoch`: the finished part of it, in [0, 1].
std::string progress_line(const std::string& label, double seconds,
                          int64_t epoch, int64_t epochs, double done_of_epoch,
                          double samples_per_second);

// A display of the progress. On a terminal it is one line that is overwritten.
// In a log file it is a new line every ten seconds, so that logs stay short.
class Progress {
 public:
  Progress(std::string label, int64_t epochs);

  // Shows the progress. `epoch`: the current epoch, counted from 1. `done`: the
  // finished part of the epoch, in [0, 1].
  void update(int64_t epoch, double done, double samples_per_second);

  // Prints a line that is not overwritten.
  void say(const std::string& text);

 private:
  std::string label_;
  int64_t epochs_;
  Stopwatch watch_;
  StatusLine line_;
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
