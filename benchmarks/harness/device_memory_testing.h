// Memory of devices for several tests.
#pragma once

#include <cstdint>

#include "benchmarks/harness/experiment/outcome.h"

namespace gpipe::benchmarks {

// Returns memory without buffers and without reserved memory.
inline DeviceMemory make_memory(int64_t parameters, int64_t gradients,
                                int64_t optimizer_state, int64_t peak) {
  DeviceMemory memory;
  memory.parameters = parameters;
  memory.gradients = gradients;
  memory.optimizer_state = optimizer_state;
  memory.peak = peak;
  return memory;
}

}  // namespace gpipe::benchmarks
