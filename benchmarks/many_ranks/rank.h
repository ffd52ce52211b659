// One of the processes of many_ranks.
#pragma once

#include <cstdint>

namespace gpipe::benchmarks {

// Returns the seconds of a clock that all processes of the machine share.
double seconds_now();

// What one process does.
struct RankOptions {
  int64_t replicas = 1, microbatches = 16, steps = 5;
};

// Connects as the environment says, and trains a pipeline with one small layer
// per process: `steps` steps that are measured, then further ones until the
// world fails. Prints words with a number behind each:
//
//   loaded      seconds_now() at the beginning
//   ready       seconds_now() after the first step
//   threads     of this process after the first step
//   connections sockets that are connected with another process; of rank 0
//               as store_connections, because all ranks connect to its store
//   median      seconds of a step
//   failed      seconds_now() when the failure of another process was known
//   names       the rank that has failed
//
// Returns the exit code.
int run_rank(const RankOptions& options);

}  // namespace gpipe::benchmarks
