// What a piece of code takes from the heap.
#pragma once

#include <cstdint>

namespace gpipe::testing {

// From its beginning on, what this thread allocates: with ASan every malloc(),
// also LibTorch's for tensors; without it operator new alone, whoever calls it.
// One at a time on a thread.
class AllocationMeter {
 public:
  AllocationMeter();
  ~AllocationMeter();

  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  int64_t largest() const;  // bytes of the largest request
  int64_t peak() const;     // the most that was held at a time
};

}  // namespace gpipe::testing
