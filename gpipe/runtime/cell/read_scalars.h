// Brings scalars from devices to the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace gpipe::internal {

// Returns `scalars` on the host, with one copy from each device, for which the
// host waits. (item() waits once for each scalar.) They are real numbers of any
// dtypes on any devices; the results have the same dtypes, and no graph.
std::vector<at::Tensor> scalars_on_host(const std::vector<at::Tensor>& scalars);

// Returns the values of floating-point `scalars`, read in the same way.
std::vector<double> read_scalars(const std::vector<at::Tensor>& scalars);

}  // namespace gpipe::internal
