// Measures the heap memory that a piece of code allocates.
#pragma once

#include <cstdint>

namespace gpipe::testing {

// A counter of the allocations of this thread during the object's lifetime.
// With ASan every malloc() counts, also LibTorch's for tensors. Without ASan
// only operator new counts, in any caller. A thread may have one object at a
// time.
class AllocationMeter {
 public:
  AllocationMeter();
  ~AllocationMeter();

  AllocationMeter(const AllocationMeter&) = delete;
  AllocationMeter& operator=(const AllocationMeter&) = delete;

  int64_t largest() const;  // bytes of the largest request
  int64_t peak() const;     // most bytes held at the same time
};

}  // namespace gpipe::testing
