// Counts the bytes of CPU tensors.
#pragma once

#include <cstdint>

#include "gpipe/testing/fail_nth.h"

namespace gpipe::testing {

// Takes the place of LibTorch's CPU allocator for the rest of the process when
// install() is called; tensors made before are not counted. Counts what
// tensors ask for, without the allocator's own rounding.
// Threads: all.
class CountingAllocator {
 public:
  static void install();

  // Bytes held by live tensors, and the largest that has been since
  // reset_peak(). Both 0 at install().
  static int64_t live_bytes();
  static int64_t peak_bytes();
  static void reset_peak();

  // Of the allocations of at least one byte.
  static FailNth& failing();
};

}  // namespace gpipe::testing
