// How far a training run is, as text.
#pragma once

#include <cstdint>
#include <string>

namespace gpipe::trainer {

// Of a run that goes from `first` to `steps`.
struct Progress {
  int64_t first = 0, step = 0, steps = 0;  // `step` have been made
  double epoch = 0;
  double loss = 0;
  double rows_per_second = 0;
  std::string rows_name;
  double seconds = 0;  // since `first`
};

// "[####......] step 120/300 | epoch 1.25 | loss 2.302 | 85.3 images/s |
// 00:01:05 | 00:01:37 left", on one line. The time left is judged from the
// steps since `first`; not told while there are none. Threads: pure function.
std::string to_text(const Progress& progress);

}  // namespace gpipe::trainer
