// How far a run is, on stderr.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace gpipe::benchmarks {

// "pipeline-2 | 00:01:05 | epoch 2/3 (50%) | 21.3 samples/s | 00:01:05 left".
// The time left is judged from the part that is done; "" while that is none.
std::string progress_line(const std::string& label, double seconds,
                          int64_t epoch, int64_t epochs, double done_of_epoch,
                          double samples_per_second);

// "01:02:03".
std::string clock_text(double seconds);

// On a terminal a line that is written over; else, so that logs stay short, a
// line every ten seconds.
class Progress {
 public:
  Progress(std::string label, int64_t epochs);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // In epoch `epoch` (from 1), of which `done` in [0, 1] is behind us.
  void update(int64_t epoch, double done, double samples_per_second);

  // A line that stays.
  void say(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  int64_t epochs_;
  bool terminal_;
  Clock::time_point start_;
  Clock::time_point last_;
};

}  // namespace gpipe::benchmarks
