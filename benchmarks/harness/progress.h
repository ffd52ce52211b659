// How far a run is, on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "gpipe/text/status_line.h"

namespace gpipe::benchmarks {

// "pipeline-2 | 00:01:05 | epoch 2/3 (50%) | 21.3 samples/s | 00:01:05 left".
// The time left is judged from the part that is done; "" while that is none.
std::string progress_line(const std::string& label, double seconds,
                          int64_t epoch, int64_t epochs, double done_of_epoch,
                          double samples_per_second);

// On a terminal a line that is written over; else, so that logs stay short, a
// line every ten seconds.
class Progress {
 public:
  Progress(std::string label, int64_t epochs);

  // In epoch `epoch` (from 1), of which `done` in [0, 1] is behind us.
  void update(int64_t epoch, double done, double samples_per_second);

  // A line that stays.
  void say(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  int64_t epochs_;
  Clock::time_point start_;
  StatusLine line_;
};

}  // namespace gpipe::benchmarks
