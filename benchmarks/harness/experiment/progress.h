// The progress of a run, on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "gpipe/base/status_line.h"

namespace gpipe::benchmarks {

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
  using Clock = std::chrono::steady_clock;

  std::string label_;
  int64_t epochs_;
  Clock::time_point start_;
  StatusLine line_;
};

}  // namespace gpipe::benchmarks
