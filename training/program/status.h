// The progress of a training run as text.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe::train_program {

// The progress of a run that started at step `first` and ends at step `steps`.
struct Progress {
  int64_t first = 0, step = 0, steps = 0;  // `step`: steps done
  double epoch = 0;
  double loss = 0;
  double rows_per_second = 0;
  std::string rows_name;
  double seconds = 0;  // since step `first`
};

// Returns a number with four digits. Thread-safe.
std::string number_text(double value);

// Returns "[####......] step 120/300 | epoch 1.25 | loss 2.302 | 85.3 images/s
// | 00:01:05 | 00:01:37 left" on one line. The time left is estimated from the
// steps since `first`, and is missing before the first step. Thread-safe.
std::string to_text(const Progress& progress);

}  // namespace gpipe::train_program
