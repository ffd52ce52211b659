// Copies between the simulated accelerators, and between them and the host.
#pragma once

namespace gpipe::simulated {

// The duration of a copy between devices, or between a device and the host.
struct CopyCost {
  double latency = 0;           // seconds
  double seconds_per_byte = 0;  // 1 / bandwidth
};
// Sets the cost of all later copies. By default copies cost nothing.
// Thread-safe.
void set_copy_cost(const CopyCost& cost);

}  // namespace gpipe::simulated
