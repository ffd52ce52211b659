// One of the processes of many_ranks.
#pragma once

#include <cstdint>

#include "benchmarks/many_ranks/training.h"

namespace gpipe::benchmarks {

// Returns the seconds of a clock that all processes of the machine share.
double seconds_now();

// Connects as the environment says, and trains a pipeline with one small layer
// per process: the steps of `training`, which are measured, then further ones
// until the world fails. Prints words with a number behind each:
//
//   loaded      seconds_now() at the beginning
//   ready       seconds_now() after the first step
//   threads     of this process after the first step
//   connections sockets that are connected with another process; of rank 0
//               as store_connections, because all ranks connect to its store
//   layer, bits the number of this process's layer, and the checksum of its
//               parameters after the measured steps
//   median      seconds of a step
//   cpu         CPU seconds of this process in a step, the mean
//   failed      seconds_now() when the failure of another process was known
//   names       the rank that has failed
//
// Returns the exit code.
int run_rank(const Training& training);

// Connects as the environment says, and compares clocks `rounds` times. Prints
// words with a number behind each, once for each round but on rank 0:
//
//   offset      seconds by which the clock of rank 0 seems to be ahead. All
//               processes of a machine read the same clock, so the truth is 0.
//   bound       the largest error of it that SharedClock states
//
// Returns the exit code.
int run_clock_rank(int64_t rounds);

}  // namespace gpipe::benchmarks
