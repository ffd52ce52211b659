// Copies between the simulated accelerators, and from and to the host.
#pragma once

namespace gpipe::simulated {

// What a copy takes that leaves a device or comes to one.
struct CopyCost {
  double latency = 0;           // seconds
  double seconds_per_byte = 0;  // 1 / bandwidth
};
void set_copy_cost(const CopyCost& cost);

}  // namespace gpipe::simulated
