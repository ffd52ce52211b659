// Brings scalars from devices to the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe::internal {

// Returns the values of `scalars`, which are real numbers of any floating-point
// dtypes on any devices, with one copy from each device. The host waits for
// that copy. (item() waits once for each scalar.)
std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars);

}  // namespace gpipe::internal
