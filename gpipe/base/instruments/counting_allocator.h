// Counts the bytes of CPU tensors.
#pragma once

#include <cstdint>

#include "gpipe/base/instruments/fail_nth.h"

namespace gpipe::instruments {

// A CPU allocator that counts the bytes that tensors request, without rounding.
// install() makes it LibTorch's CPU allocator for the rest of the process.
// Tensors made before are not counted. Thread-safe.
class CountingAllocator {
 public:
  static void install();

  // The bytes of live tensors, and the largest value since reset_peak(). Both
  // are 0 at install().
  static int64_t live_bytes();
  static int64_t peak_bytes();
  static void reset_peak();

  // From now on counts only tensors that the calling thread makes, whichever
  // thread frees them. Tensors counted before stay counted.
  static void ignore_other_threads();

  // Makes allocations fail. Only allocations of at least one byte count.
  static FailNth& failing();
};

}  // namespace gpipe::instruments
