// Options of automatic_schedule().
#pragma once

#include <cstdint>
#include <vector>

namespace gpipe {

// The schedules that automatic_schedule() may consider, and how many.
struct AutomaticOptions {
  // The most bytes that each rank may hold (Timeline::peak_bytes): one number
  // for each rank, or one for all; empty for no limit.
  std::vector<double> memory_bytes;
  // Whether backwards may be in two parts, I and W. Needs the costs of both.
  bool split_backward = true;
  // Whether micro-batches may be recomputed. Needs the cost of recompute. It
  // takes time and saves memory, so it helps only if memory is limited.
  bool recompute = true;
  // Whether what micro-batches keep for their backward may be on the host
  // meanwhile (O and L, see with_offload()). Needs Costs::host_bandwidth above
  // 0 and bytes of activations, and helps only if memory is limited. The search
  // then runs twice, without and with it.
  bool offload = true;
  // The number of candidates to simulate, in addition to those made from named
  // schedules. It is a number and not a time, so that results are reproducible.
  // Must not be negative.
  int budget = 30000;
  uint64_t seed = 0;  // of the local search
};

}  // namespace gpipe
