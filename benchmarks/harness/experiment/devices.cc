#include "benchmarks/harness/experiment/devices.h"

#include <ATen/DeviceAccelerator.h>

namespace gpipe::benchmarks {

std::vector<c10::Device> devices_for(int64_t partitions,
                                     const std::vector<c10::Device>& devices) {
  if (devices.size() == 1 && devices[0].is_cpu()) {
    return {static_cast<size_t>(partitions), devices[0]};
  }
  const auto available = static_cast<int64_t>(devices.size());
  if (available < partitions) {
    throw MissingDevices("left out: needs " + std::to_string(partitions) +
                         " devices, there are " + std::to_string(available) +
                         "; to share a device among partitions, list it "
                         "several times (--devices=0,0)");
  }
  return {devices.begin(), devices.begin() + partitions};
}

void release_memory() {
  if (at::accelerator::deviceCount() > 0) at::accelerator::emptyCache();
}

}  // namespace gpipe::benchmarks
