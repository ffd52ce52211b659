// The devices of a run. Accelerators of any type that LibTorch knows.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <stdexcept>
#include <vector>

namespace gpipe::benchmarks {

// The error of an experiment that needs more devices than the machine has. The
// table skips the experiment and goes on.
class MissingDevices : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Returns a device per partition: the first ones of `devices`. If `devices` is
// a single CPU, all partitions get it.
//
// Throws MissingDevices if there are fewer devices than partitions.
std::vector<c10::Device> devices_for(int64_t partitions,
                                     const std::vector<c10::Device>& devices);

// Returns the memory in LibTorch's caches to the accelerators.
void release_memory();

}  // namespace gpipe::benchmarks
