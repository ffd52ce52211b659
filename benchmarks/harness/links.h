// How long copies from device to device take.
#pragma once

#include <c10/core/Device.h>

namespace gpipe::benchmarks {

// A copy takes latency + bytes / bandwidth.
struct Link {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes per second; 0: unlimited
};

// Copies a few bytes and 64 MiB from `from` to `to`, each for a fifth of a
// second and ten times at least, with nothing else at work on the two, and
// takes the medians. Between partitions on one device, and between CPUs,
// nothing is copied: 0 and unlimited.
//
// Errors: c10::Error if there is no memory for the copies. Threads: any.
Link measure_link(c10::Device from, c10::Device to);

}  // namespace gpipe::benchmarks
