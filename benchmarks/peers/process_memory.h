// How much a process grows. Linux.
#pragma once

namespace gpipe::benchmarks {

// What this process holds more, at most, than when this was made. Pages count,
// those of libraries included, as they do for the peers in Python.
//
// One at a time: the highest mark, which the constructor takes back to now, is
// the process's. Threads: any. std::runtime_error without /proc.
class ProcessMemory {
 public:
  ProcessMemory();
  double peak_mib() const;

 private:
  double start_mib_;
};

}  // namespace gpipe::benchmarks
