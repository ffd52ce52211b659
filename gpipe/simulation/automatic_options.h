// What automatic_schedule() may do, and how long it looks.
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe {

// Which schedules automatic_schedule() may look at, and for how long.
struct AutomaticOptions {
  // The most bytes that each rank may hold (Timeline::peak_bytes): one number
  // for each rank, or one for all; empty for no limit.
  std::vector<double> memory_bytes;
  // May a backward be in two parts, I and W? It also takes the costs of both.
  bool split_backward = true;
  // May micro-batches be recomputed? It also takes their cost. As this takes
  // time and saves memory, it is only done where a limit asks for it.
  bool recompute = true;
  // The candidates that are simulated, beside those that are made from named
  // schedules: a number, not seconds, so that results can be reproduced.
  int budget = 30000;
  uint64_t seed = 0;
};

}  // namespace gpipe
