// The time of copies between two devices.
#pragma once

#include <c10/core/Device.h>

namespace gpipe::benchmarks {

// A model of copies between devices: a copy takes latency + bytes / bandwidth.
struct Link {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes per second; 0: unlimited
};

// Measures copies of 16 bytes and of 64 MiB from `from` to `to` and returns the
// link that fits the medians. Repeats each copy for 0.2 s and at least ten
// times. No other work may run on the two devices.
//
// Returns a latency of 0 and unlimited bandwidth if `from` and `to` are the
// same device or are both CPUs, since partitions there copy nothing.
//
// Throws c10::Error if there is not enough memory for the copies. Threads: Any
// thread may call it.
Link measure_link(c10::Device from, c10::Device to);

}  // namespace gpipe::benchmarks
