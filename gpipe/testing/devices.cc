#include "gpipe/testing/devices.h"

#include <ATen/Functions.h>

namespace gpipe::testing {

at::Tensor on_device(const at::Tensor& tensor) { return tensor.to(device()); }

at::Tensor ones(at::IntArrayRef sizes) {
  return at::ones(sizes, at::TensorOptions().device(device()));
}

std::vector<c10::Device> devices(std::size_t partitions) {
  std::vector<c10::Device> devices;
  for (std::size_t j = 0; j < partitions; ++j) {
    devices.push_back(device(static_cast<int64_t>(j)));
  }
  return devices;
}

}  // namespace gpipe::testing
