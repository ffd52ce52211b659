// The memory by which a process grows. Linux only.
#pragma once

namespace gpipe::benchmarks {

// A measurement of the peak memory of this process, relative to the memory at
// construction. It counts resident pages, including those of libraries, as
// benchmarks/peers/meter.py does for the peers. Memory that was freed before is
// first returned to the system (malloc_trim() of glibc or TCMalloc). Otherwise
// a process could use it without growing.
//
// Only one may exist at a time: the constructor resets the peak of the whole
// process. Threads: Any thread may call the methods.
class ProcessMemory {
 public:
  // Resets the peak. Throws std::runtime_error if there is no /proc.
  ProcessMemory();

  // Returns the peak in MiB, relative to the memory at construction.
  double peak_mib() const;

 private:
  double start_mib_;
};

}  // namespace gpipe::benchmarks
