// The time and the peak memory of a step, on the CPU (Linux only) or on
// accelerators.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <vector>

#include "benchmarks/harness/table.h"
#include "gpipe/runtime/device/stream.h"

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

// A stopwatch that uses the clocks of the devices: timed events on the current
// streams of accelerators, the host's clock on the CPU.
//
// Threads: only the one that makes it, whose current streams may not change.
class StepWatch {
 public:
  // Blocks until all devices are idle, then starts. `devices`: at least one; a
  // device may be listed several times.
  explicit StepWatch(const std::vector<c10::Device>& devices);

  // Blocks until the devices have finished the work of the current streams.
  // Returns the time since the start on the slowest device, and the CPU time of
  // the process.
  Duration elapsed() const;

 private:
  std::vector<c10::Device> devices_;  // each once
  std::vector<internal::Stamp> starts_;
  double cpu_;
};

// The peak memory of a process from construction on. The CPU and accelerators
// are measured in different ways, so that peaks are those of the peers'
// workers.
//
// Only one may exist at a time.
class PeakMemory {
 public:
  // Waits for accelerators and resets the peaks. `devices`: as above, of one
  // type.
  explicit PeakMemory(const std::vector<c10::Device>& devices);

  // Returns the growth of the process in MiB (see ProcessMemory), or for
  // accelerators two sums over the devices: the peak MiB allocated and the peak
  // MiB reserved by LibTorch's allocator.
  std::vector<double> peaks_mib() const;

 private:
  std::vector<c10::Device> accelerators_;  // each once
  std::optional<ProcessMemory> process_;   // without accelerators
};

}  // namespace gpipe::benchmarks
